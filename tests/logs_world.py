"""A log book with everything it tells, for tests."""

import time
from contextlib import contextmanager

from solarhost.logs.book import LogBook
from solarhost.problems import Problems

SECRET = "host-key-42"
ID = "a1b2"


def nothing(_lines):
    pass


class World:
    """One agent's log book with everything that it tells."""

    def __init__(self, folder, **changes):
        self.folder = folder
        self.problems = Problems()
        self.published = []
        self.deleted: set[str] = set()
        values = {
            "folder": folder,
            "buffer_size": 100,
            "retained": 2,
            "retention_s": 3600.0,
            "file_max_bytes": 1 << 30,
            "secrets": [SECRET],
            "exists": lambda name: name not in self.deleted,
        }
        self.book = LogBook(**(values | changes), publish=self.published.append, problems=self.problems)

    def run(self, data: bytes, instance_id=ID, run=1, alias="model:1b", failed=False):
        """A whole run of a child that writes `data`."""
        path = self.book.begin_run(instance_id, alias, run)
        tail = self.book.follow(instance_id, path, run, nothing)
        append(path, data)
        tail.finish()
        tail.join(10)
        assert not tail.is_alive()
        self.book.retire(instance_id, failed=failed)
        return path

    def close(self):
        self.book.close(time.monotonic() + 10)


def append(path, data: bytes):
    with open(path, "ab") as file:
        file.write(data)


def until(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def shown(lines):
    return [(line.seq, line.line) for line in lines]


@contextmanager
def followed(world, data=b"", run=1):
    """A run whose child is still there."""
    path = world.book.begin_run(ID, "model", run)
    append(path, data)
    tail = world.book.follow(ID, path, run, nothing)
    yield path
    tail.finish()
    tail.join(10)
