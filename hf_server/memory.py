"""Memory that is needed no more, given back to the system."""

import ctypes
import mmap
import os

_M_ARENA_MAX = -8  # of malloc.h

_libc = ctypes.CDLL(None)


def share_arenas() -> None:
    """Let threads share a heap for two cores; by itself each would keep leftovers in one of its own."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, max(1, (os.cpu_count() or 1) // 2))


def give_back() -> None:
    """Return what was freed and glibc keeps."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def let_go(address: int, size: int) -> None:
    """Return a part of a mapped file that nobody reads any more; whole pages only, others have the rest."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
