"""Stands in for a `llama-server` that never gets ready and prints a thousand lines a second.

Each line says when it was written, by the monotonic clock that all processes share.
"""

import os
import time

PERIOD_S = 0.001

due = time.monotonic()
while True:
    os.write(1, b"written at %d ns\n" % time.monotonic_ns())
    due += PERIOD_S
    time.sleep(max(0.0, due - time.monotonic()))
