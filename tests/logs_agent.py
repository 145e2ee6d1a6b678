"""An agent that does nothing but follow one log file: `logs_agent.py FOLDER LOG OUT [no-disk]`.

Each line that it shows is one JSON line `[seq, text]` in OUT, written before anything else happens. With
`no-disk` this process can't write to files any more; what it shows comes on its standard output.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from solarhost.logs.book import LogBook
from solarhost.problems import Problems


def main(folder: str, log: str, out: str, *options: str) -> None:
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if "no-disk" in options:
        descriptor = sys.stdout.fileno()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    def publish(event):
        texts = [json.dumps([seq, line]) for seq, line in enumerate(event.lines, event.first_seq)]
        os.write(descriptor, "".join(text + "\n" for text in texts).encode())

    problems = Problems()
    book = LogBook(
        folder=Path(folder),
        buffer_size=1000,
        retained=1,
        retention_s=1e6,
        file_max_bytes=1 << 30,
        secrets=[],
        publish=publish,
        problems=problems,
        exists=lambda _id: True,
    )
    tail = book.follow("a1", Path(log), 1, lambda _: None)
    while not Path(folder, "child-is-gone").exists():
        time.sleep(0.01)
    tail.finish()
    tail.join()
    memory = [[line.seq, line.line] for line in book.read("a1")]
    os.write(descriptor, json.dumps({"problems": problems.current(), "memory": memory}).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
