"""Which backend and device a run uses, and why."""

from __future__ import annotations

import os
import types
from dataclasses import dataclass, fields, is_dataclass

import torch

from coterie.engine.settings import Settings
from coterie.method import Everyone, Fixed, Named, Nobody, Plan
from coterie.models.net import Net
from coterie.tensors import Tensors, num_elements

_WORTH_A_POOL = 2e10  # parameters x examples over the run; from here on workers pay even for the cheapest layers
_START_SECONDS = 10.0  # what starting workers may cost, with room to spare
_EFFICIENCY = 0.85  # of a worker beside others: they share caches and memory


@dataclass(frozen=True)
class Choice:
    backend: str
    workers: int
    reason: str
    could_use: int = 1  # workers, once a round has shown that they pay


def choose_backend(settings: Settings, plan: Plan, params: Tensors, examples: list[int]) -> Choice:
    cores = os.cpu_count() or 1
    workers = min(settings.workers or cores, len(examples))  # more would have nobody to work for
    device = choose_device(settings.devices)
    if settings.backend in ("loop", "graph"):
        return Choice(settings.backend, 1, "asked for")
    if settings.backend == "stacked":
        return Choice("stacked", 1, f"asked for, {min(settings.width, len(examples))} clients at once")
    if settings.backend == "pool":
        if device.type != "cpu":
            raise ValueError(f"The workers of a pool compute on the CPU, found {device}. Use --devices cpu, or --backend loop.")
        return Choice("pool", workers, "asked for")
    if device.type != "cpu":
        return Choice("loop", 1, "one client after another on the accelerator")
    for phase in plan:
        found = defined_in_main(phase.method)
        if found is not None:
            return Choice("loop", 1, f"worker processes can't import {found}, which is defined in __main__")
    widest = max((_cohort_size(phase.cohort, len(examples)) for phase in plan), default=0)
    if workers < 2 or widest < 2:
        return Choice("loop", 1, "one core, or one client at a time")
    mean = sum(examples) / max(len(examples), 1)
    work = num_elements(params) * mean * sum(phase.rounds * _cohort_size(phase.cohort, len(examples)) for phase in plan)
    if work < _WORTH_A_POOL:
        reason = f"{work:.1e} parameters x examples, and no round was long enough to pay for {workers} workers"
        return Choice("loop", 1, reason, could_use=workers if settings.threads == 1 else 1)
    return Choice("pool", workers, f"{workers} one-thread workers for {work:.1e} parameters x examples")


def after_a_round(choice: Choice, seconds: float, left: int) -> Choice:
    """The choice once a round of several clients took `seconds`, with `left` more like it to come.

    Parameters x examples says little of a net whose weights are used at many places; a measured round does.
    """
    saved = seconds * left * (1.0 - 1.0 / (_EFFICIENCY * choice.could_use))
    if saved < _START_SECONDS:
        return choice
    told = f"{choice.could_use} one-thread workers, after a round of {seconds:.1f} s in one process with {left} more to come"
    return Choice("pool", choice.could_use, told)


def defined_in_main(value: object) -> str | None:
    """The name of the first class or function of a method (or of what it holds) that only the running script has."""
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    if kind.__module__ == "__main__":
        return kind.__qualname__
    inside = [getattr(value, f.name) for f in fields(value)] if is_dataclass(value) and not isinstance(value, type) else []
    return next((found for item in inside if (found := defined_in_main(item)) is not None), None)


def choose_device(devices: str) -> torch.device:
    if devices == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(devices)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device '{devices}'. Use cpu, cuda or cuda:0.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ValueError(
            f"There is no device '{devices}' here, found {found} CUDA devices. Use --devices {'cuda:0' if found else 'cpu'}."
        )
    return device


def set_precision(precision: str) -> torch.dtype:
    """The dtype of parameters and data. fp32 means true fp32: cuDNN's convolutions use TF32 unless it is switched off."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.float64 if precision == "fp64" else torch.float32


def prepared(net: Net, device: torch.device, precision: str) -> Net:
    """The net with its first values on the device, computing in this precision (from `set_precision`)."""
    moved = net.to(device, set_precision(precision))
    return moved.computing_in(torch.bfloat16) if precision == "bf16" else moved


def _cohort_size(cohort: object, num_clients: int) -> int:
    if isinstance(cohort, Everyone):
        return num_clients
    if isinstance(cohort, Fixed):
        return cohort.size
    if isinstance(cohort, Named):
        return len(cohort.clients)
    if isinstance(cohort, Nobody):
        return 0
    return max(1, round(getattr(cohort, "rate", 1.0) * num_clients))
