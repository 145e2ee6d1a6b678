"""What glibc keeps of memory that was freed: little, where many threads free much."""

import ctypes
import os

_M_ARENA_MAX = -8  # of malloc.h

_libc = ctypes.CDLL(None)


def share_arenas() -> None:
    """Let threads share a heap for two cores; by itself each would keep leftovers in one of its own."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, max(1, (os.cpu_count() or 1) // 2))


def give_back() -> None:
    """Return to the system what is free."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
