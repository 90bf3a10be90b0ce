"""What FL-GAP's server computes, against plain arithmetic: graph, neighbourhood means, clipping, probe."""

from __future__ import annotations

import pytest
import torch

from coterie.methods.fl_gap.mixing import (
    Probe,
    bound_statistics,
    clip_changes,
    distances,
    mix,
    mixing_weights,
    neighbours,
)
from coterie.models.nets import mlp, resnet8


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_graph_by_hand() -> None:
    points = torch.tensor([[0.0], [1.0], [3.0], [3.0], [10.0]])
    near = neighbours(points, 2, "euclidean")
    assert [row.nonzero().flatten().tolist() for row in near] == [[1, 2], [0, 2], [1, 3], [1, 2], [2, 3]]  # ties by id
    assert neighbours(points[:3], 7, "euclidean").sum(1).tolist() == [2, 2, 2]  # no more than there are others
    assert neighbours(points[:1], 3, "euclidean").tolist() == [[False]]
    directions = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0], [0.0, 0.0]])
    expected = torch.tensor([[0.0, 1.0, 1 - 0.5**0.5], [1.0, 0.0, 1 - 0.5**0.5], [1 - 0.5**0.5, 1 - 0.5**0.5, 0.0]])
    torch.testing.assert_close(distances(directions, "cosine")[:3, :3], expected)


def test_neighbourhood_means_are_convex_and_never_spread_apart() -> None:
    near, trained, values = neighbours(random(7, 3), 3, "euclidean"), torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool(), random(7, 5)
    weights = mixing_weights(near, trained, None)
    torch.testing.assert_close(weights.sum(1), torch.ones(7, dtype=torch.float64))
    assert (weights >= 0).all()
    mixed = torch.stack(mix(list(values), weights))
    for i in range(7):  # (2.15) as a plain loop
        used = [j for j in range(7) if near[i, j] and trained[j]] + [i]
        torch.testing.assert_close(mixed[i], sum(values[j] for j in used) / len(used))
    spread = (values[:, None] - values[None]).abs().max()
    assert (mixed[:, None] - mixed[None]).abs().max() <= spread


def test_everybody_near_everybody_is_the_mean() -> None:
    values = random(5, 2, 3)
    near = neighbours(random(5, 2), 4, "euclidean")
    mixed = mix(list(values), mixing_weights(near, torch.ones(5, dtype=torch.bool), 1 / 5))
    for value in mixed:
        torch.testing.assert_close(value, values.mean(0))


def test_nobody_near_trained_the_group() -> None:
    near, values = neighbours(random(4, 2), 2, "euclidean"), random(4, 3)
    for self_weight in (None, 0.3, 0.0):  # 0 would be 0/0
        mixed = mix(list(values), mixing_weights(near, torch.zeros(4, dtype=torch.bool), self_weight))
        assert all(torch.equal(new, old) for new, old in zip(mixed, values, strict=True))


def test_self_weight() -> None:
    near = torch.tensor([[False, True, True], [True, False, True], [True, True, False]])
    weights = mixing_weights(near, torch.tensor([True, False, True]), 2 / 3)  # one neighbour counts 1/3
    expected = torch.tensor([[2 / 3, 0, 1 / 3], [1 / 4, 1 / 2, 1 / 4], [1 / 3, 0, 2 / 3]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected)


def test_a_malicious_neighbour_and_the_corrected_bound() -> None:
    """The paper's alpha/(1-alpha) tau = tau/3 is too small: equal bases, weights 1/4, three updates -tau, one +tau."""
    tau = 2.0
    changes = {i: {"w": torch.tensor([-9.0 if i < 3 else 50.0], dtype=torch.float64)} for i in range(4)}
    clipped = torch.stack([c["w"] for c in clip_changes(changes, tau).values()])
    assert clipped.flatten().tolist() == [-tau, -tau, -tau, tau]
    weights = mixing_weights(~torch.eye(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool), None)
    mixed = mix(list(clipped), weights)[0]
    honest = clipped[:3].mean(0)
    deviation = (mixed - honest).norm()
    torch.testing.assert_close(deviation, torch.tensor(0.5 * tau, dtype=torch.float64))
    assert deviation > tau / 3
    assert deviation <= 0.25 * (2 * tau) + 1e-12  # alpha (2 tau + diameter of the bases), bases equal


def test_clipping_spans_all_groups_and_median() -> None:
    changes = {i: {"a": torch.tensor([3.0 * i]), "b": torch.tensor([4.0 * i])} for i in (1, 2, 3)}  # norms 5, 10, 15
    by_median = clip_changes(changes, "median")
    assert by_median[1] is changes[1] and by_median[2] is changes[2]
    assert [float(by_median[3][n]) for n in "ab"] == pytest.approx([6.0, 8.0])
    assert clip_changes(changes, None) == changes


def test_margin_of_four_errors() -> None:
    """Two errors of distance do not protect a neighbour (both ends move): z_i=0, z_j=1, z_l=-(1+3e) flips at errors e."""
    e = 0.01
    true = torch.tensor([[0.0], [1.0], [-(1 + 3 * e)]])
    moved = true + torch.tensor([[-e], [e], [e]])
    assert neighbours(true, 1, "euclidean")[0].tolist() == [False, True, False]
    assert neighbours(moved, 1, "euclidean")[0].tolist() == [False, False, True]
    safe = torch.tensor([[0.0], [1.0], [-(1 + 4.01 * e)]])
    for signs in torch.cartesian_prod(*[torch.tensor([-e, e])] * 3):
        assert neighbours(safe + signs[:, None], 1, "euclidean")[0].tolist() == [False, True, False]


def test_statistics_stay_within_three_sigma() -> None:
    reference = {"n.running_mean": torch.tensor([1.0, 1.0]), "n.running_var": torch.tensor([4.0, 4.0])}
    uploaded = {"n.running_mean": torch.tensor([100.0, 2.0]), "n.running_var": torch.tensor([-1.0, 99.0])}
    bounded = bound_statistics(reference, uploaded)
    assert bounded["n.running_mean"].tolist() == [7.0, 2.0]
    assert bounded["n.running_var"].tolist() == [0.0, 64.0]


def test_signature_of_the_zero_image_by_hand() -> None:
    net = mlp(6, 2, hidden=(4,))
    params = {name: random(*value.shape, seed=i) for i, (name, value) in enumerate(net.params.items())}
    bias = params["encoder.layer1.1.bias"]
    signature = Probe(input_shape=(6,)).signature(net, params, {})
    torch.testing.assert_close(signature, bias.relu())  # no more than `dim` features: as they are
    ones = Probe(input_shape=(6,), value=1.0).signature(net, params, {})
    torch.testing.assert_close(ones, (params["encoder.layer1.1.weight"].sum(1) + bias).relu())
    small = Probe(input_shape=(6,), dim=3).signature(net, params, {})
    doubled = {**params, "encoder.layer1.1.bias": 2 * bias}
    torch.testing.assert_close(Probe(input_shape=(6,), dim=3).signature(net, doubled, {}), 2 * small)  # a fixed linear map
    assert small.shape == (3,)


def test_signature_tells_models_apart_only_by_the_model() -> None:
    net = resnet8(3, 2)
    probe = Probe(input_shape=(3, 16, 16))
    one = probe.signature(net, net.params, net.buffers)
    assert torch.equal(one, probe.signature(net, dict(reversed(net.params.items())), net.buffers))
    assert distances(torch.stack([one, one]), "euclidean").abs().max() == 0
    shifted = {name: value - 0.5 if name.endswith("running_mean") else value for name, value in net.buffers.items()}
    assert (probe.signature(net, net.params, shifted) - one).norm() > 1e-3  # statistics are part of the model
    with pytest.raises(ValueError, match=r"A Probe needs an input shape .* found \(\) and 256"):
        Probe(input_shape=())
