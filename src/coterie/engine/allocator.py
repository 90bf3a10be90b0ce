"""How this process gets memory for tensors; only for processes that are ours (workers, the command line)."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT, _FROM_HEAP = 2**31 - 1, 2**30


def keep_freed_memory() -> None:
    """Keep freed memory for the next step instead of giving it back to the system.

    A training step frees and asks for the same tens of megabytes each time; with glibc's defaults the kernel hands out and
    zeroes fresh pages for them, which costs up to a third of a small convolutional net's step. Elsewhere this does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # not glibc
    mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
    mallopt(_TRIM_THRESHOLD, _KEPT)
