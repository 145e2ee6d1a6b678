"""Keys as they are pressed, without Enter."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys() -> Iterator[Callable[[float], bytes]]:
    """Within the block: what is pressed within so many seconds, b"" for nothing. Ctrl-C stays what it is.

    Where the standard input is no terminal, nobody presses anything.
    """
    if not sys.stdin.isatty():
        yield _nothing
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)

    def pressed(within_s: float) -> bytes:
        return os.read(keyboard, 64) if select.select([keyboard], [], [], within_s)[0] else b""

    try:
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _nothing(within_s: float) -> bytes:
    time.sleep(within_s)
    return b""
