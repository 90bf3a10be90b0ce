"""Which layer groups an FL-GAP client trains next, and which of them it can afford to upload.

The paper's freeze and unfreeze rules (eq. 2.6, C.2-C.10) contradict each other: a stalled round feeds the freeze
counter and asks for unfreezing at once, and a large gap between validation and training loss is called
underfitting. `rule="hysteresis"` (default) keeps two counters that never both count: a stall with a small gap
opens groups, once per stall; a stall with a large gap, after an opening that did not help, or at the limit,
closes one; a group that changed is locked for `close_patience` rounds; the head (last group) never closes.
`rule="literal"` is the order of cases as printed, in which |U| swings for ever under a constant loss.

paper symbol -> our name: U_k -> "unfrozen"; b_k (C.5) -> "best"; q (C.4) -> "close_count"; eps_imp, eps_gap as
printed; U_max -> max_open; s_{k,l}, mu_{k,l} -> scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.tensors import Tensors, norm, num_bytes, pick

Selection = Literal["greedy", "greedy_or_best_single", "exact"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a client opens and closes layer groups."""

    rule: Literal["hysteresis", "literal"] = "hysteresis"
    eps_imp: float = 1e-4  # a smaller drop of the validation loss is a stalled round
    eps_gap: float = 0.10  # a larger gap, validation minus training loss, is overfitting
    open_patience: int = 2
    close_patience: int = 2
    open_at_start: int = 3  # the last groups, head included
    max_open: int | None = None  # U_max; None is half of the groups, rounded up
    max_open_per_round: int = 2

    def __post_init__(self) -> None:
        if self.rule not in ("hysteresis", "literal"):
            raise ValueError(f"The policy rule must be hysteresis or literal, found '{self.rule}'. Use 'hysteresis'.")
        for name in ("open_patience", "close_patience", "open_at_start", "max_open_per_round"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}. Use 1 or more.")
        if self.max_open is not None and self.max_open < self.open_at_start:
            raise ValueError(
                f"max_open ({self.max_open}) is less than open_at_start ({self.open_at_start}). "
                "Open fewer groups at the start, or allow more."
            )

    def start(self, num_groups: int) -> Tensors:
        """The state before a client's first round: the last groups are open, nothing is counted."""
        unfrozen = torch.zeros(num_groups, dtype=torch.bool)
        unfrozen[-self.open_at_start :] = True
        zero = torch.zeros((), dtype=torch.int64)
        return {
            "best": torch.tensor(math.inf, dtype=torch.float64),  # C.2
            "open_count": zero,
            "close_count": zero,
            "tried_open": torch.tensor(False),
            "unfrozen": unfrozen,
            "lock": torch.zeros(num_groups, dtype=torch.int64),
            "scores": torch.zeros(num_groups, dtype=torch.float64),
        }

    def step(self, state: Tensors, val_loss: float, train_loss: float, scores: Tensor) -> Tensors:
        """The state after a round with these losses; its "unfrozen" is what the next round trains."""
        books = _Books(self, state, scores)
        improvement = float(state["best"]) - val_loss  # Delta_k
        gap = val_loss - train_loss  # C.3
        if self.rule == "hysteresis":
            self._hysteresis(books, improvement, gap)
        else:
            self._literal(books, improvement, gap)
        best = torch.tensor(min(float(state["best"]), val_loss), dtype=torch.float64)  # C.5
        return {**books.state(), "best": best, "scores": scores}

    def _hysteresis(self, books: _Books, improvement: float, gap: float) -> None:
        if improvement > self.eps_imp:
            books.open_count = books.close_count = 0
            books.tried_open = False
            return
        if gap > self.eps_gap or books.tried_open or books.full:
            books.close_count, books.open_count = books.close_count + 1, 0
        else:
            books.close_count, books.open_count = 0, books.open_count + 1
        head = len(books.unfrozen) - 1
        if books.close_count >= self.close_patience:
            if books.close_one(allowed=range(head)):
                books.close_count = 0
        elif books.open_count >= self.open_patience:
            opened = [books.open_one() for _ in range(self.max_open_per_round)]
            if any(opened):
                books.open_count, books.tried_open = 0, True

    def _literal(self, books: _Books, improvement: float, gap: float) -> None:
        stuck = improvement <= self.eps_imp  # C.8
        books.close_count = books.close_count + 1 if stuck else 0  # C.4
        if books.close_count >= self.close_patience and books.close_one(allowed=range(len(books.unfrozen))):  # C.6, C.7
            books.close_count = 0
        elif stuck or gap > self.eps_gap:  # C.9, C.10
            books.open_one()

    def limit(self, num_groups: int) -> int:
        """U_max for a net of this many groups."""
        if self.max_open is not None:
            return min(self.max_open, num_groups)
        return max(math.ceil(num_groups / 2), min(self.open_at_start, num_groups))


class _Books:
    """The state of one client during one step, as plain numbers."""

    def __init__(self, policy: Policy, state: Tensors, scores: Tensor) -> None:
        self.unfrozen: list[bool] = state["unfrozen"].tolist()
        self.locked = [rounds > 0 for rounds in state["lock"].tolist()]
        self.lock: list[int] = (state["lock"] - 1).clamp(min=0).tolist()
        self.open_count = int(state["open_count"])
        self.close_count = int(state["close_count"])
        self.tried_open = bool(state["tried_open"])
        self.scores: list[float] = scores.tolist()
        self.limit = policy.limit(len(self.unfrozen))
        self.cooldown = policy.close_patience if policy.rule == "hysteresis" else 0

    @property
    def full(self) -> bool:
        return sum(self.unfrozen) >= self.limit

    def close_one(self, allowed: Iterable[int]) -> bool:
        """Freeze the open group of least score; the last open one stays."""
        candidates = [g for g in allowed if self.unfrozen[g] and not self.locked[g]]
        if not candidates or sum(self.unfrozen) == 1:
            return False
        self._change(min(candidates, key=lambda g: (self.scores[g], g)), False)
        return True

    def open_one(self) -> bool:
        """Unfreeze the frozen group of greatest score, below the limit."""
        candidates = [g for g, is_open in enumerate(self.unfrozen) if not is_open and not self.locked[g]]
        if not candidates or self.full:
            return False
        self._change(max(candidates, key=lambda g: (self.scores[g], -g)), True)
        return True

    def _change(self, group: int, is_open: bool) -> None:
        self.unfrozen[group] = is_open
        self.lock[group] = self.cooldown

    def state(self) -> Tensors:
        return {
            "open_count": torch.tensor(self.open_count),
            "close_count": torch.tensor(self.close_count),
            "tried_open": torch.tensor(self.tried_open),
            "unfrozen": torch.tensor(self.unfrozen),
            "lock": torch.tensor(self.lock),
        }


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Which open groups are really uploaded; the others keep their local value and stay open.

    `top`: at most so many; `max_bytes`: at most so many bytes of parameters; None is no limit. The worth of a group is
    the norm of its change, or with rank "mu" that norm's square per bit.
    """

    top: int | None = None
    max_bytes: int | None = None
    rank: Literal["norm", "mu"] = "norm"
    select: Selection = "greedy_or_best_single"

    def __post_init__(self) -> None:
        for name, value in (("top", self.top), ("max_bytes", self.max_bytes)):
            if value is not None and value < 1:
                raise ValueError(f"The upload limit {name} must be at least 1, found {value}. Use None for no limit.")

    def choose(self, change: Tensors, groups: Sequence[Sequence[str]], unfrozen: Tensor) -> Tensor:
        """The flags of the groups to upload; `change` holds the parameters of every group."""
        score = utility_per_bit if self.rank == "mu" else group_norms
        worth: list[float] = score(change, groups).tolist()
        chosen = [place for place, is_open in enumerate(unfrozen.tolist()) if is_open]
        if self.top is not None:
            chosen = sorted(chosen, key=lambda place: (-worth[place], place))[: self.top]
        if self.max_bytes is not None:
            costs = [sum(num_bytes(change[name]) for name in groups[place]) for place in chosen]
            taken = affordable([worth[place] for place in chosen], costs, self.max_bytes, self.select)
            chosen = [chosen[i] for i in taken]
        flags = torch.zeros_like(unfrozen)
        flags[chosen] = True
        return flags


def utility_per_bit(values: Tensors, groups: Sequence[Sequence[str]]) -> Tensor:
    """||v_l||^2 / (32 P_l) per group: mu_l of eq. 2.8 where v is the gradient."""
    sizes = [sum(values[name].numel() for name in names) for names in groups]
    return group_norms(values, groups).square() / torch.tensor([32.0 * size for size in sizes], dtype=torch.float64)


def group_norms(values: Tensors, groups: Sequence[Sequence[str]]) -> Tensor:
    """||v_l||_2 per group: s_l of eq. C.1 where v is the gradient."""
    return torch.stack([norm([pick(values, names)]) for names in groups])


def affordable(values: Sequence[float], costs: Sequence[int], budget: int, select: Selection) -> tuple[int, ...]:
    """The items to take within a budget (D.6).

    Greedy by density, which the paper calls optimal, is so only when items can be split; better of that and the
    best single item is at least half of the optimum; "exact" lists all trade-offs that nothing dominates.
    """
    fitting = [i for i, cost in enumerate(costs) if cost <= budget]
    if select == "exact":
        return _exact([(values[i], costs[i], i) for i in fitting], budget)
    taken: list[int] = []
    for i in sorted(fitting, key=lambda i: (-values[i] / costs[i], i)):
        if sum(costs[j] for j in taken) + costs[i] <= budget:
            taken.append(i)
    best = max(fitting, key=lambda i: values[i], default=None)
    if select == "greedy_or_best_single" and best is not None and values[best] > sum(values[i] for i in taken):
        taken = [best]
    return tuple(sorted(taken))


def _exact(items: Sequence[tuple[float, int, int]], budget: int) -> tuple[int, ...]:
    front: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]  # cost, value, items; both grow along the list
    for value, cost, item in items:
        grown = [(c + cost, v + value, (*taken, item)) for c, v, taken in front if c + cost <= budget]
        merged = sorted([*front, *grown], key=lambda entry: (entry[0], -entry[1]))
        front = []
        for entry in merged:
            if not front or entry[1] > front[-1][1]:
                front.append(entry)
    return front[-1][2]
