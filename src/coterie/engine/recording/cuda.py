"""A recording on an NVIDIA device: a CUDA graph, one launch for all operations of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_WARM_UP = 2  # libraries choose their kernels and take their workspaces in the first calls


class CudaGraph:
    """Captures `step`, after some rehearsals of it. A graph holds raw addresses: who owns it keeps alive what the step reads and writes."""

    def __init__(self, step: Callable[[], None], rehearse: Callable[[], None], device: torch.device) -> None:
        self._step = step
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), _fastest_convolutions():
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(_WARM_UP):
                    rehearse()
            torch.cuda.current_stream().wait_stream(beside)
            torch.cuda.synchronize()
            # one pool for all: they are replayed one after another, and nothing in it outlives a replay
            # thread_local: a checkpoint may be written by another thread meanwhile
            with torch.cuda.graph(self._graph, pool=_pool(torch.cuda.current_device()), capture_error_mode="thread_local"):
                step()

    def replay(self) -> None:
        self._graph.replay()


class _fastest_convolutions:
    """Lets cuDNN try its algorithms, for shapes that come again and again and only for these."""

    def __enter__(self) -> None:
        self._before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.benchmark = self._before


@cache
def _pool(device: int) -> Any:
    return torch.cuda.graph_pool_handle()
