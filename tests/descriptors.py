"""How many files this process has open, and a limit on how many it may open."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def left(free: int) -> Iterator[None]:
    """Within the block so many files can be opened."""
    before = getrlimit(RLIMIT_NOFILE)
    held: list[int] = []
    try:
        setrlimit(RLIMIT_NOFILE, (descriptors() + 64, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        setrlimit(RLIMIT_NOFILE, before)
