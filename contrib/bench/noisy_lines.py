"""Prints as many log lines a second as its argument says, in twenty lots."""

import sys
import time

lot = int(sys.argv[1]) // 20
begin = time.monotonic()
number = 0
while True:
    lines = [
        f"srv  update_slots: run {number + index}: decoding batch, n_tokens = 512" for index in range(lot)
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    number += lot
    time.sleep(max(0.0, begin + number / (lot * 20) - time.monotonic()))
