"""What attackers do to data and updates, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.attacks.poison import Attack, Backdoor, InnerProduct, LabelFlip, LyingScore, RandomUpdate, ScaledUpdate, SignFlip
from coterie.attacks.poison.score import isfa_weight, largest_gain
from coterie.message import Message
from coterie.randomness import Key

F64 = torch.float64
KEY = Key(0, ("attack",))


def update(*values: float, weight: float | None = None) -> Message:
    groups = {"shared": {"w": torch.tensor(values[:-1], dtype=F64), "steps": torch.tensor(7)}, "control": {"c": torch.tensor(float(values[-1]))}}
    return Message(groups, weight=None if weight is None else torch.tensor(weight, dtype=F64))


def sent(attack: Attack, messages: dict[int, Message], key: Key = KEY, honest: dict[int, Message] | None = None) -> dict[int, list[float]]:
    found = attack.tamper(messages, {client: Message() for client in messages}, key, honest or {})
    assert all(int(m["shared"]["steps"]) == 7 for m in found.values())  # whole numbers are left alone
    assert all(m["shared"]["w"].dtype == F64 and m["control"]["c"].dtype == torch.float32 for m in found.values())
    return {client: [*m["shared"]["w"].tolist(), float(m["control"]["c"])] for client, m in found.items()}


def test_flips_and_scales_are_factors_on_every_group() -> None:
    own = {3: update(1, -2, 4), 5: update(0.5, 0, -1)}
    assert sent(SignFlip(), own) == {3: [-1, 2, -4], 5: [-0.5, 0, 1]}
    assert sent(SignFlip(scale=10), own) == {3: [-10, 20, -40], 5: [-5, 0, 10]}
    assert sent(ScaledUpdate(scale=10), own) == {3: [10, -20, 40], 5: [5, 0, -10]}


def test_an_inner_product_attack_sends_minus_epsilon_times_a_mean_of_updates() -> None:
    own, honest = {3: update(1, -2, 4), 5: update(3, 2, 0)}, {0: update(8, 8, 8), 1: update(0, 4, 2)}
    assert sent(InnerProduct(epsilon=0.5), own) == {3: [-1, 0, -1], 5: [-1, 0, -1]}
    assert sent(InnerProduct(epsilon=2, sees="all"), own, honest=honest) == {3: [-8, -12, -10], 5: [-8, -12, -10]}
    assert InnerProduct(sees="all").omniscient and not InnerProduct().omniscient


def test_a_random_update_is_as_long_as_it_says_and_points_anywhere() -> None:
    rng = np.random.default_rng(0)
    own = {c: update(*rng.normal(size=4001)) for c in (1, 2)}
    alone = {c: np.array(v) for c, v in sent(RandomUpdate(scale=100, together=False), own).items()}
    for client, values in alone.items():
        honest = np.array([*own[client]["shared"]["w"].tolist(), float(own[client]["control"]["c"])])
        assert np.linalg.norm(values) == pytest.approx(100 * np.linalg.norm(honest), rel=1e-6)
        assert abs(values @ honest) / np.linalg.norm(values) / np.linalg.norm(honest) < 5 / math.sqrt(4001)
        assert np.mean(values**4) / np.mean(values**2) ** 2 == pytest.approx(3, abs=0.5)  # Gaussian

    def angle(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert abs(angle(alone[1], alone[2])) < 5 / math.sqrt(4001)
    together = {c: np.array(v) for c, v in sent(RandomUpdate(scale=100), own).items()}
    assert angle(together[1], together[2]) == pytest.approx(1, abs=1e-6)
    other = np.array(sent(RandomUpdate(scale=100), own, KEY.fold("round", 1))[1])
    assert abs(angle(together[1], other)) < 5 / math.sqrt(4001)


def test_labels_are_turned_round_or_one_class_is_called_another() -> None:
    columns = {"x": torch.zeros(4, 2), "y": torch.tensor([0, 1, 8, 9])}
    assert LabelFlip().taint(columns, 10, KEY)["y"].tolist() == [9, 8, 1, 0]
    assert LabelFlip(source=1, target=7).taint(columns, 10, KEY)["y"].tolist() == [0, 7, 8, 9]
    assert columns["y"].tolist() == [0, 1, 8, 9] and LabelFlip().taints and not LabelFlip().tampers


@pytest.mark.parametrize(("dtype", "bright"), [(torch.float32, 1), (torch.uint8, 255)])
def test_a_backdoor_marks_a_share_of_pictures_and_only_their_corner(dtype: torch.dtype, bright: int) -> None:
    x = (torch.arange(10 * 3 * 5 * 5) % 7).reshape(10, 3, 5, 5).to(dtype) / (1 if dtype == torch.uint8 else 8)
    columns = {"x": x.to(dtype), "y": torch.arange(10) % 5}
    found = Backdoor(target=3, fraction=0.25, size=2).taint(columns, 5, KEY)
    changed = [i for i in range(10) if not torch.equal(found["x"][i], columns["x"][i])]
    assert len(changed) == 3  # a quarter of ten, rounded up
    assert all(int(found["y"][i]) == 3 for i in changed)
    assert all(int(found["y"][i]) == i % 5 for i in range(10) if i not in changed)
    assert (found["x"][changed][:, :, -2:, -2:] == bright).all() and found["x"].dtype == dtype
    assert torch.equal(found["x"][changed][:, :, :3], columns["x"][changed][:, :, :3])
    assert torch.equal(found["x"][changed][:, :, :, :3], columns["x"][changed][:, :, :, :3])


def test_the_trigger_is_tried_on_every_picture_of_the_other_classes() -> None:
    columns = {"x": torch.zeros(6, 1, 4, 4), "y": torch.tensor([0, 1, 2, 0, 1, 2])}
    rows = Backdoor(target=2, size=1).trigger(columns)
    assert rows is not None and rows["y"].tolist() == [2, 2, 2, 2]
    assert rows["x"].sum(dim=(1, 2, 3)).tolist() == [1, 1, 1, 1] and (rows["x"][:, :, 3, 3] == 1).all()
    assert LabelFlip().trigger(columns) is None


def test_a_backdoor_that_scales_replaces_the_model() -> None:
    assert sent(Backdoor(scale=20), {1: update(1, 2, 3)}) == {1: [20, 40, 60]}
    assert Backdoor(scale=20).tampers and not Backdoor().tampers and Backdoor().taints


# --- a lying score ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("examples", [1, 7, 32, 1000])
def test_what_a_lie_gains_is_bounded_exactly(gamma: float, examples: int) -> None:
    """True weight min(n, 32)/32 exp(gamma (s - 1)), claimed 1; the bound exp(gamma) 32/min(n, 32) is reached at s = 0."""
    bound = math.exp(gamma) * 32 / min(examples, 32)
    assert largest_gain(gamma, 32, examples) == pytest.approx(bound, rel=1e-12)
    for score in (0.0, 0.3, 0.9, 1.0):
        true = min(examples, 32) / 32 * math.exp(gamma * (score - 1))
        assert isfa_weight(score, examples, gamma, 32) == pytest.approx(true, rel=1e-12)
        message = update(1, 2, 3, weight=true)
        lie = LyingScore(sharpness=gamma, n_max=32).tamper({0: message}, {}, KEY, {})[0]
        gain = float(lie.weight) / true
        assert float(lie.weight) == 1.0 and gain <= bound * (1 + 1e-12)
        assert (gain == pytest.approx(bound, rel=1e-12)) == (score == 0.0 or gamma == 0.0)
    assert LyingScore(sharpness=gamma, n_max=32).facts({4: examples, 5: 32})["weight_gain_bound"] == pytest.approx(bound, rel=1e-12)


def test_a_liar_may_turn_its_update_round_as_well() -> None:
    assert sent(LyingScore(scale=-2), {0: update(1, 2, 3, weight=0.1)}) == {0: [-2, -4, -6]}


# --- who ----------------------------------------------------------------------------------------------------------------------


def test_attackers_are_drawn_once_for_a_seed_and_are_the_same_for_every_attack() -> None:
    first = SignFlip().attackers(20, 0)
    assert len(first) == 4 == len(set(first)) and first == tuple(sorted(first)) and first == LabelFlip().attackers(20, 0)
    assert len({SignFlip().attackers(20, seed) for seed in range(5)}) > 1
    assert SignFlip(seed=9).attackers(20, 0) == SignFlip(seed=9).attackers(20, 1) == SignFlip().attackers(20, 9)
    assert SignFlip(clients=(5, 2)).attackers(20, 0) == (2, 5)
    assert [len(SignFlip(share=share).attackers(10, 0)) for share in (0.01, 0.24, 0.25, 0.5)] == [1, 2, 3, 5]


def test_an_attack_begins_when_it_says() -> None:
    assert [SignFlip(from_round=3).active(index) for index in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SignFlip(share=0.0), r"share of attackers must lie between 0 and 1, found 0\.0\. Use for example 0\.2"),
        (lambda: SignFlip(clients=(1, 1)), r"named more than once"),
        (lambda: SignFlip(from_round=0), r"from_round must be at least 1, found 0"),
        (lambda: SignFlip(scale=-1.0), r"scale must be greater than 0, found -1\.0"),
        (lambda: InnerProduct(epsilon=0.0), r"epsilon must be greater than 0"),
        (lambda: InnerProduct(sees="some"), r"sees must be own or all, found 'some'"),
        (lambda: LabelFlip(source=1), r"two different classes or none, found source=1, target=None"),
        (lambda: LabelFlip(source=1, target=1), r"two different classes or none"),
        (lambda: LabelFlip(source=1, target=12).taint({"y": torch.tensor([1])}, 10, KEY), r"class 12, but there are 10\. Use 0 to 9"),
        (lambda: LabelFlip().taint({"x": torch.zeros(3)}, None, KEY), r"needs examples with class labels, found the columns \['x'\]"),
        (lambda: Backdoor(fraction=0.0), r"fraction must lie in \(0, 1\], found 0\.0"),
        (lambda: Backdoor(size=4).patched(torch.zeros(2, 1, 4, 4)), r"patch of 4 x 4 pixels needs larger pictures"),
        (lambda: Backdoor().patched(torch.zeros(2, 9)), r"found examples of shape \(9,\)"),
        (lambda: LyingScore(n_max=0), r"n_max at least 1"),
        (lambda: SignFlip(clients=(20,)).attackers(20, 0), r"Attackers \[20\] do not exist; there are 20 clients\. Use ids from 0 to 19"),
        (lambda: SignFlip(share=0.9).attackers(2, 0), r"All 2 clients would attack"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
