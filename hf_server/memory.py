"""What glibc keeps of memory that was freed: little, where many threads free much."""

import ctypes
import os

_M_ARENA_MAX = -8  # of malloc.h

_libc = ctypes.CDLL(None)


def share_arenas() -> None:
    """Let threads share as many heaps as there are cores; by itself each would keep leftovers of its own."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, os.cpu_count() or 1)


def give_back() -> None:
    """Return to the system what is free."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
