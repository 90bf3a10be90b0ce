"""Where a run computes, and in which precision."""

from __future__ import annotations

import torch

from coterie.models.net import Net


def choose_devices(devices: str) -> list[torch.device]:
    """`auto`, the name of one device, or several with commas between them: one for each worker."""
    if devices == "auto":
        return [torch.device("cuda" if torch.cuda.is_available() else "cpu")]
    return [_device(name.strip()) for name in devices.split(",")]


def main_device(devices: str, backend: str) -> torch.device:
    """Where the server computes: beside its clients, or on the CPU where workers compute them."""
    found = choose_devices(devices)
    return found[0] if len(found) == 1 and backend != "pool" else torch.device("cpu")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device '{name}'. Use cpu, cuda or cuda:0, or several with commas: cuda:0,cuda:1.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ValueError(f"There is no device '{name}' here, found {found} CUDA devices. Use --devices {'cuda:0' if found else 'cpu'}.")
    return device


def set_precision(precision: str) -> torch.dtype:
    """The dtype of parameters and data. fp32 means true fp32: cuDNN's convolutions use TF32 unless it is switched off."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.float64 if precision == "fp64" else torch.float32


def prepared(net: Net, device: torch.device, precision: str) -> Net:
    """The net with its first values on the device, computing in this precision."""
    moved = net.to(device, set_precision(precision))
    return moved.computing_in(torch.bfloat16) if precision == "bf16" else moved
