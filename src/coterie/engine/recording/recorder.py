"""Records a step, and believes the recording only when it gives the step's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from coterie.engine.recording.cuda import CudaGraph
from coterie.engine.recording.tape import Tape
from coterie.engine.recording.watch import Unrecordable, Watch


class Recording(Protocol):
    def replay(self) -> None: ...


def record(step: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Recording:
    """A recording of `step`, which reads and writes tensors that stay where they are.

    `state` is all that it writes; it is left as it was found. Raises `Unrecordable`, with the reason, for a step that
    can't be recorded or whose replay gives other numbers than the step itself.
    """
    before = [value.clone() for value in state]

    def rehearse() -> None:  # always the same step: the one after it may lie beyond what it reads from
        _restore(state, before)
        step()

    try:
        with Watch(device):
            step()
        expected = [value.clone() for value in state]
        _restore(state, before)
        found: Recording = CudaGraph(step, rehearse, device) if device.type == "cuda" else Tape(step)
        _restore(state, before)
        found.replay()
        if not all(_close(value, other) for value, other in zip(state, expected, strict=True)):
            raise Unrecordable("a replay of its step gives other numbers than the step, so something in it is not in the tensors")
    except Unrecordable:
        raise
    except Exception as error:  # a capture that the device refuses
        raise Unrecordable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    finally:
        _restore(state, before)
    return found


def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for own, value in zip(state, values, strict=True):
        own.copy_(value)


def _close(found: Tensor, expected: Tensor) -> bool:
    """Equal but for the order of sums, beside the tensor's own largest number."""
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    if expected.numel() == 0:
        return True
    tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-2  # another algorithm in tf32 or bf16 moves the third digit
    apart, largest = (found - expected).double().abs(), expected.double().abs().max()
    near = bool((apart <= tolerance * (largest + 1e-6)).all())
    return near or not bool(expected.isfinite().all())  # a client that diverged is no reason
