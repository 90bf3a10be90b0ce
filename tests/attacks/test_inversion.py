"""Pictures from gradients: every level on nets small enough for seconds, against arithmetic by hand (AT-T1 to AT-T3)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from coterie.attacks.inversion import (
    Observed,
    dlg,
    dummy_anchors,
    dummy_decoder,
    free_cotangent,
    idlg,
    inverting,
    known_anchors,
    label_of,
)
from coterie.attacks.inversion.guesses import DummyAnchors, DummyDecoder, FreeCotangent, KnownAnchors, WholeNet
from coterie.attacks.inversion.matching import cosine, squared, total_variation
from coterie.message import Message
from coterie.metrics.images import psnr
from coterie.tensors import Tensors

SIDE, HIDDEN, CLASSES, ANCHORS = 6, 12, 3, 5


def encoder(weights: Tensors, x: Tensor) -> Tensor:
    return torch.sigmoid(x.flatten(1) @ weights["encoder.weight"].T + weights["encoder.bias"])


def whole(weights: Tensors, x: Tensor) -> Tensor:
    return encoder(weights, x) @ weights["head.weight"].T + weights["head.bias"]


def weights(seed: int = 0) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"encoder.weight": (HIDDEN, SIDE * SIDE), "encoder.bias": (HIDDEN,), "head.weight": (CLASSES, HIDDEN), "head.bias": (CLASSES,)}
    return {name: torch.rand(shape, generator=draw, dtype=torch.float64) - 0.5 for name, shape in shapes.items()}


def picture(seed: int = 1, count: int = 1) -> Tensor:
    return torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def gradient(loss: Tensor, of: Tensors) -> Tensors:
    return dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True))


def seen_whole(x: Tensor, label: int = 1) -> Observed:
    moving = {name: value.requires_grad_() for name, value in weights().items()}
    found = gradient(F.cross_entropy(whole(moving, x), torch.tensor([label])), moving)
    return Observed({name: value.detach() for name, value in moving.items()}, found, (1, SIDE, SIDE), CLASSES)


def fable_head() -> tuple[Tensor, Tensor, Tensor]:
    """M = H W A, its bias, and the anchors' embeddings, drawn at random."""
    draw = torch.Generator().manual_seed(7)
    H, W = torch.randn(CLASSES, ANCHORS, generator=draw, dtype=torch.float64), torch.randn(ANCHORS, ANCHORS, generator=draw, dtype=torch.float64)
    z = encoder(weights(), picture(9, ANCHORS))
    A = z / z.norm(dim=1, keepdim=True)
    return H @ W @ A, torch.zeros(CLASSES, dtype=torch.float64), A


def seen_fable(x: Tensor, label: int = 1) -> tuple[Observed, Tensor, Tensor]:
    """A FABLE client's message, with v = dL/dz and z from the formulas of the specification."""
    M, b, _ = fable_head()
    moving = {name: value.requires_grad_() for name, value in weights().items() if name.startswith("encoder.")}
    z = encoder(moving, x)
    zh = z / z.norm()
    logits = zh @ M.T + b
    found = gradient(F.cross_entropy(logits, torch.tensor([label])), moving)
    p = logits.detach().softmax(1)[0]
    y = F.one_hot(torch.tensor(label), CLASSES).double()
    unit = zh.detach()[0]
    v = (torch.eye(HIDDEN, dtype=torch.float64) - torch.outer(unit, unit)) @ M.T @ (p - y) / z.detach().norm()
    params = {name: value.detach() for name, value in moving.items()}
    return Observed(params, found, (1, SIDE, SIDE), CLASSES), v, z.detach()[0]


def apart(found: Tensors, wanted: Tensors) -> float:
    return float(squared(found, wanted).detach())


def decibels(found: Tensor, x: Tensor) -> float:
    return float(psnr((found / 2 + 0.5).clamp(0, 1), x / 2 + 0.5))


def test_dlg_finds_a_picture_through_two_layers_in_under_a_hundred_iterations() -> None:
    x = picture()
    attempt = dlg(whole, seen_whole(x), iterations=99, restarts=3)
    assert decibels(attempt.pictures, x) > 40 and attempt.iterations < 100  # AT-T1


def test_the_label_of_every_digit_is_read_off_a_relu_nets_message() -> None:
    """AT-T2, with the gradient by hand: dL/dW = (p - y) z^T, z >= 0."""
    draw = torch.Generator().manual_seed(3)
    W1, W2 = torch.randn(32, 64, generator=draw, dtype=torch.float64), torch.randn(10, 32, generator=draw, dtype=torch.float64)
    images, labels = load_digits(return_X_y=True)
    for image, label in zip(images[:200], labels[:200], strict=True):
        z = (W1 @ torch.from_numpy(image) / 16).clamp(min=0)
        error = (W2 @ z / 6).softmax(0) - F.one_hot(torch.tensor(int(label)), 10).double()
        assert int(label_of({"head.weight": torch.outer(error, z), "head.bias": error})) == label


def test_idlg_needs_a_head_and_one_picture() -> None:
    x = picture()
    attempt = idlg(whole, seen_whole(x, label=2), iterations=60)
    assert decibels(attempt.pictures, x) > 40
    with pytest.raises(ValueError, match="holds none: a split method keeps its head"):
        idlg(whole, seen_fable(x)[0])
    seen = seen_whole(x)
    with pytest.raises(ValueError, match="one picture, found a batch of 2"):
        idlg(whole, Observed(seen.params, seen.gradient, seen.picture, CLASSES, pictures=2))


def test_the_free_cotangent_at_the_true_picture_is_v_itself() -> None:
    """AT-T3, FB-T9: the gradient is linear in v', and least squares at x' = x give back v = dL/dz of the formulas; v . z = 0."""
    x = picture()
    seen, v, z = seen_fable(x)
    guess = FreeCotangent(encoder, seen, HIDDEN)
    columns = [guess.gradient({"x": x, "v": row[None]}) for row in torch.eye(HIDDEN, dtype=torch.float64)]
    J = torch.stack([torch.cat([column[name].flatten() for name in seen.names()]) for column in columns], 1).detach()
    G = torch.cat([seen.gradient[name].flatten() for name in seen.names()])
    found = torch.linalg.lstsq(J, G[:, None]).solution[:, 0]
    assert float((J @ found - G).norm()) < 1e-6
    torch.testing.assert_close(found, v, rtol=0, atol=1e-9)
    assert abs(float(v @ z)) < 1e-12 * float(v.norm() * z.norm())


def test_every_level_can_give_the_true_gradient_of_what_it_models() -> None:
    """Put in what is true: the distance is 0. L0 knows no anchors, but some decoder of its gives the same v."""
    x = picture()
    seen, v, _ = seen_fable(x)
    M, b, A = fable_head()
    y = 60.0 * F.one_hot(torch.tensor([1]), CLASSES).double()  # softmax of it is the label to 1e-26
    H = torch.randn(CLASSES, ANCHORS, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    anchors = picture(9, ANCHORS)
    head = {"x": x, "y": y, "bias": b}
    oracle = KnownAnchors(encoder, seen, A).gradient({**head, "weight": H})
    dummy = DummyAnchors(encoder, seen, ANCHORS).gradient({**head, "weight": H, "anchors": anchors})
    assert apart(dummy, oracle) < 1e-28
    assert apart(DummyDecoder(encoder, seen, HIDDEN, True).gradient({**head, "weight": M}), seen.gradient) < 1e-24
    assert apart(FreeCotangent(encoder, seen, HIDDEN).gradient({"x": x, "v": v[None]}), seen.gradient) < 1e-24
    tilted = FreeCotangent(encoder, seen, HIDDEN, orthogonal=True).gradient({"x": x, "v": (v + 3.0 * encoder(seen.params, x)[0])[None]})
    assert apart(tilted, seen.gradient) < 1e-24
    label = torch.zeros(CLASSES, dtype=torch.float64)
    label[1] = 1.0
    p = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
    plain = torch.outer(p - label, v) / float((p - label).square().sum())  # H^T (p - y) = v, with a bias that makes p uniform
    z = encoder(seen.params, x)[0]
    found = DummyDecoder(encoder, seen, HIDDEN).gradient({"x": x, "y": y, "weight": plain, "bias": -plain @ z})
    assert apart(found, seen.gradient) < 1e-24


def test_levels_with_more_freedom_come_at_least_as_near() -> None:
    """AT-T3: at the end of equal searches L4 is at most as far from a FABLE message as the paper's attacker L0, and finds the picture."""
    x = picture()
    seen, _, _ = seen_fable(x)
    budget = {"iterations": 25, "restarts": 4}  # one start may end far away, for either
    scale = float(squared({n: torch.zeros_like(g) for n, g in seen.gradient.items()}, seen.gradient))
    l0 = dummy_decoder(encoder, seen, **budget)
    floor = max(l0.loss, 1e-8 * scale)  # all of them stop when nothing is left
    l4 = free_cotangent(encoder, seen, **budget)
    assert l4.loss <= floor and decibels(l4.pictures, x) > 30
    projected = free_cotangent(encoder, seen, orthogonal=True, **budget)  # v . z = 0 is known of FABLE
    assert projected.loss <= floor and decibels(projected.pictures, x) > 30


def test_the_attacks_with_anchors_run_and_move_towards_the_message() -> None:
    x = picture()
    seen, _, _ = seen_fable(x)
    for attempt in (
        dummy_anchors(encoder, seen, anchors=ANCHORS, iterations=20, restarts=1),
        known_anchors(encoder, seen, picture(9, ANCHORS), iterations=20, restarts=1),
    ):
        assert attempt.loss < 0.1 * attempt.start and attempt.pictures.shape == x.shape


def test_inverting_gradients_follows_the_direction() -> None:
    x = picture()
    attempt = inverting(whole, seen_whole(x), variation=0.0, iterations=300)
    assert attempt.loss < 1e-3 and decibels(attempt.pictures, x) > 20
    assert float(attempt.pictures.max()) <= 1.0 and float(attempt.pictures.min()) >= -1.0  # kept in the pixels' range


def test_distances_and_variation_by_hand() -> None:
    a, b = {"u": torch.tensor([1.0, 2.0])}, {"u": torch.tensor([3.0, -1.0])}
    assert float(squared(a, b)) == pytest.approx(4 + 9)
    assert float(cosine(a, b)) == pytest.approx(1 - 1 / (5 * 10) ** 0.5)
    x = torch.tensor([[[[0.0, 1.0], [3.0, 7.0]]]])
    assert float(total_variation(x)) == pytest.approx((1 + 4) / 2 + (3 + 6) / 2)


def test_a_message_of_one_step_gives_the_gradient() -> None:
    sent = Message({"shared": {"w": torch.tensor([2.0, -1.0])}})
    g, lr, decay = torch.tensor([0.5, 3.0]), 0.1, 0.01
    arrived = Message({"shared": {"w": -lr * (g + decay * sent["shared"]["w"])}})
    seen = Observed.of_one_step(sent, arrived, lr=lr, weight_decay=decay, picture=(1, 2, 2), classes=2)
    torch.testing.assert_close(seen.gradient["w"], g.double(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="no gradient to attack"):
        Observed.of_one_step(sent, Message({"shared": {"w": torch.zeros(2)}}), lr=lr, picture=(1, 2, 2), classes=2)


def test_restarts_are_chosen_by_distance_and_a_start_in_nan_is_drawn_again() -> None:
    x = picture()
    seen = seen_whole(x)

    class Unlucky(WholeNet):
        begun = 0

        def start(self, generator: torch.Generator) -> Tensors:
            Unlucky.begun += 1
            found = super().start(generator)
            return {**found, "x": found["x"] * torch.nan} if Unlucky.begun == 1 else found

    from coterie.attacks.inversion.matching import lbfgs

    attempt = lbfgs(Unlucky(whole, seen), seen, iterations=30)
    assert attempt.finite and attempt.restarts == 2 and decibels(attempt.pictures, x) > 20
    with pytest.raises(ValueError, match="restarts must be at least 1, found 0"):
        dlg(whole, seen, restarts=0)
