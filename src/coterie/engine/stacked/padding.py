"""Whether padding would change an ask's numbers, found by trying it on one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.data.examples import View
from coterie.engine.answers import place_of, positions_of
from coterie.engine.stacked.gradients import Gradients
from coterie.engine.stacked.member import Member
from coterie.engine.step import turns_of
from coterie.method import Net, Sweep
from coterie.randomness import draw
from coterie.tensors import Tensors


def padding_matters(member: Member, net: Net) -> bool:
    """Whether this ask gives other numbers for a padded batch than for the same one without padding.

    A loss that forgets the mask of its batch does; it must not be answered together with clients of other sizes.
    """
    ask, streams = member.ask, member.streams
    if not streams:
        return False
    rows = {name: next(positions_of(len(view), ask.batch_size, member.key)) for name, view in streams.items()}
    size = max(map(len, rows.values())) + 1
    plain, padded = ({name: _rows(view, rows[name], extra) for name, view in streams.items()} for extra in (0, size))
    device, dtype = place_of(ask.params or ask.refs or ask.buffers, net)
    sizes = (len(next(iter(rows.values()))), len(next(iter(padded.values()))["mask"]))
    for batch, count in zip((plain, padded), sizes, strict=True):
        batch["noise"] = {name: draw(member.key, 0, spec, count, device, dtype) for name, spec in ask.noise.items()}
    if isinstance(ask, Sweep):
        with torch.no_grad():
            found = [ask.fn(ask.params, ask.buffers, ask.refs, batch, net) for batch in (plain, padded)]
        if ask.gather == "rows":
            found[1] = {name: value[: sizes[0]] for name, value in found[1].items()}
        return not _close(found[0], found[1])
    for loss_fn, moves in turns_of(ask):
        one, other = (Gradients(ask, loss_fn, moves, own) for own in (net, net.masked()))
        results = [
            fn(ask.params, ask.buffers, ask.refs, batch, ask.frozen or {}) for fn, batch in ((one, plain), (other, padded))
        ]
        if not all(_close(a, b) for a, b in zip(*results, strict=True)):
            return True
    return False


def num_rows(member: Member) -> int:
    """Of the shortest stream: a client without rows can't be tried."""
    return min(map(len, member.streams.values()), default=0)


def _rows(view: View, positions: Tensor, extra: int) -> Tensors:
    """A batch with this many padded rows after the real ones."""
    columns = view.rows(torch.cat([positions, positions[:1].expand(extra)]))
    mask = torch.arange(len(positions) + extra) < len(positions)
    return {**columns, "mask": mask.to(next(iter(columns.values())).device)}


def _close(a: Any, b: Any, largest: float | None = None) -> bool:
    """Equal but for rounding, which is also as large as it is beside the `largest` number of the whole.

    A bias before a batch norm has no gradient, so what is found there is rounding alone.
    """
    largest = _largest(a) if largest is None else largest
    if not isinstance(a, Tensor):
        return all(_close(a[name], b[name], largest) for name in a)
    if a.shape != b.shape:
        return False
    rounding = 1e-8 if a.dtype == torch.float64 else 1e-3
    noise = 1e3 * torch.finfo(a.dtype).eps * largest if a.is_floating_point() else 0.0
    near = rounding * _largest(a) + noise
    return torch.allclose(a.detach().double(), b.detach().double(), rtol=rounding, atol=near + 1e-30, equal_nan=True)


def _largest(values: Any) -> float:
    if not isinstance(values, Tensor):
        return max(map(_largest, values.values()), default=0.0)
    finite = values.detach()[values.isfinite()]  # a client that diverged is no reason
    return float(finite.abs().max()) if finite.numel() and finite.is_floating_point() else 0.0
