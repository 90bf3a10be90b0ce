"""Freeze and unfreeze rules of FL-GAP against traces worked out by hand, and the choice of what to upload."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from coterie.methods.fl_gap.policy import Policy, Selection, Upload, affordable, group_norms, utility_per_bit
from coterie.tensors import Tensors


def trace(policy: Policy, losses: list[tuple[float, float]], scores: list[float]) -> list[int]:
    """|U| after each round with these (validation, training) losses."""
    state, sizes = policy.start(len(scores)), []
    for val_loss, train_loss in losses:
        state = policy.step(state, val_loss, train_loss, torch.tensor(scores, dtype=torch.float64))
        sizes.append(int(state["unfrozen"].sum()))
    return sizes


def open_groups(state: Tensors) -> list[int]:
    return state["unfrozen"].nonzero().flatten().tolist()


def test_constant_loss_traces() -> None:
    constant = [(0.5, 0.5)] * 12
    literal = Policy(rule="literal", max_open=3, close_patience=2)
    assert trace(literal, constant[:6], [1.0, 2.0, 3.0]) == [3, 3, 2, 3, 2, 3]
    scores = [float(g) for g in range(17)]
    assert trace(Policy(), constant, scores) == [3, 3, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]


def test_hysteresis_opens_the_best_closes_the_worst_and_keeps_the_head() -> None:
    scores = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.3, 0.0], dtype=torch.float64)  # the head has the least of all
    policy = Policy(open_at_start=2, open_patience=1, close_patience=1, max_open=4)
    state = policy.start(6)
    assert open_groups(state) == [4, 5]
    state = policy.step(state, 1.0, 1.0, scores)  # everything improves on infinity
    assert open_groups(state) == [4, 5]
    state = policy.step(state, 1.0, 1.0, scores)  # a stall with a small gap: open the two best, 1 and 2
    assert open_groups(state) == [1, 2, 4, 5]
    state = policy.step(state, 1.0, 1.0, scores)  # opening did not help: close; 1 and 2 are locked, so 4, never the head
    assert open_groups(state) == [1, 2, 5]
    state = policy.step(state, 1.0, 1.0, scores)  # 4 is locked now, 1 and 2 are free again: 2 is worth less
    assert open_groups(state) == [1, 5]


def test_overfitting_closes_and_improvement_resets() -> None:
    policy = Policy(open_at_start=3, close_patience=2)
    overfit = [(1.0, 1.0), (1.0, 0.5), (1.0, 0.5)]  # a gap above eps_gap = 0.1
    assert trace(policy, overfit, [1.0, 2.0, 3.0, 4.0, 5.0]) == [3, 3, 2]
    rescued = [(1.0, 1.0), (1.0, 0.5), (0.9, 0.4), (0.9, 0.4)]
    assert trace(policy, rescued, [1.0, 2.0, 3.0, 4.0, 5.0]) == [3, 3, 3, 3]
    exactly_eps = [(1.0, 1.0), (1.0, 1.0), (1.0 - 1e-4, 1.0), (1.0 - 1e-4, 1.0)]
    assert trace(Policy(open_at_start=1, open_patience=3), exactly_eps[:3], [1.0] * 5) == [1, 1, 1]
    assert trace(Policy(open_at_start=1, open_patience=3), exactly_eps, [1.0] * 5) == [1, 1, 1, 3]


def test_the_last_open_group_stays() -> None:
    for rule in ("hysteresis", "literal"):
        policy = Policy(rule=rule, open_at_start=1, max_open=1, close_patience=1)  # type: ignore[arg-type]
        assert trace(policy, [(1.0, 0.0)] * 5, [1.0, 2.0]) == [1] * 5


def test_scores_by_hand() -> None:
    gradient = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[2.0]]), "c": torch.tensor([1.0, 2.0, 2.0])}
    groups = (("a",), ("b", "c"))
    assert group_norms(gradient, groups).tolist() == pytest.approx([5.0, 13**0.5])
    assert utility_per_bit(gradient, groups).tolist() == pytest.approx([25 / 64, 13 / 128])


def test_greedy_is_not_optimal() -> None:
    values, costs = (2.0, 10.0), (1, 10)
    assert affordable(values, costs, 10, "greedy") == (0,)
    assert affordable(values, costs, 10, "greedy_or_best_single") == (1,)
    assert affordable(values, costs, 10, "exact") == (1,)


@pytest.mark.parametrize("select, share", [("exact", 1.0), ("greedy_or_best_single", 0.5)])
def test_selection_against_all_subsets(select: Selection, share: float) -> None:
    numbers = torch.Generator().manual_seed(0)
    for _ in range(30):
        values = torch.rand(7, generator=numbers).tolist()
        costs = torch.randint(1, 20, (7,), generator=numbers).tolist()
        subsets = [s for r in range(8) for s in itertools.combinations(range(7), r) if sum(costs[i] for i in s) <= 30]
        best = max(sum(values[i] for i in s) for s in subsets)
        chosen = affordable(values, costs, 30, select)
        assert sum(costs[i] for i in chosen) <= 30
        assert sum(values[i] for i in chosen) >= share * best - 1e-12


def chosen(upload: Upload, is_open: list[bool]) -> list[bool]:
    change = {"a": torch.full((4,), 1.0), "b": torch.full((1,), 1.5), "c": torch.full((9,), 0.5)}
    flags: Tensor = upload.choose(change, (("a",), ("b",), ("c",)), torch.tensor(is_open))
    found: list[bool] = flags.tolist()
    return found


def test_upload_limits() -> None:
    # norms 2, 1.5, 1.5; squares per parameter 1, 2.25, 0.25; bytes 16, 4, 36
    everything = [True, True, True]
    assert chosen(Upload(), [True, False, True]) == [True, False, True]
    assert chosen(Upload(top=2), everything) == [True, True, False]  # a tie goes to the earlier group
    assert chosen(Upload(top=1), everything) == [True, False, False]
    assert chosen(Upload(top=1, rank="mu"), everything) == [False, True, False]
    assert chosen(Upload(max_bytes=19), everything) == [True, False, False]  # greedy takes b, the single a is worth more
    assert chosen(Upload(max_bytes=20), everything) == [True, True, False]
    assert chosen(Upload(max_bytes=3), everything) == [False, False, False]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"rule must be hysteresis or literal, found 'both'"):
        Policy(rule="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_open \(2\) is less than open_at_start \(3\)"):
        Policy(max_open=2)
    with pytest.raises(ValueError, match=r"close_patience must be at least 1, found 0"):
        Policy(close_patience=0)
    with pytest.raises(ValueError, match=r"upload limit top must be at least 1, found 0"):
        Upload(top=0)
