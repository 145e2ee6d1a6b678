"""Fifty threads reserve and release at random for ten seconds: is more ever promised than there is?"""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread

from contrib.bench.figures import Figure, seconds, show
from solarhost.problems import Problems
from solarhost.resources.allocation import Need
from solarhost.resources.errors import CapacityExceeded
from solarhost.resources.readings import GIB
from solarhost.resources.service import Ask, Resources
from solarhost.settings import Settings

THREADS = 50
SECONDS = seconds(10.0)
FREE_GB = [80.0, 70.0, 60.0, 50.0]  # of each GPU
GPUS = [
    {"index": index, "name": "GPU", "total_gb": 80.0, "used_gb": 80.0 - free}
    for index, free in enumerate(FREE_GB)
]


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(gpu_telemetry_override=GPUS, models_dir=Path(folder))
        resources = Resources(settings, Problems(), lambda _: None)
        resources.start()
        tally = _Tally()
        began = time.monotonic()
        threads = [
            Thread(target=_churn, args=(resources, tally, seed, began + SECONDS)) for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
        left = resources.snapshot()
        resources.close(time.monotonic() + 5)
    fullest = max(most / free / GIB for most, free in zip(tally.most.values(), FREE_GB, strict=True))
    yield Figure(
        name="resources_oversold",
        value=tally.oversold,
        unit="times",
        at_most=0,
        note=f"{tally.granted} granted, {tally.refused} refused, "
        f"{(tally.granted + tally.refused) / took_s:.0f} requests/s, fullest GPU {100 * fullest:.1f}%",
    )
    yield Figure(
        name="resources_left_promised",
        value=left["vram"]["reserved_headroom_gb"],
        unit="GB",
        at_most=0,
        note="when all is released",
    )


class _Tally:
    """What is granted on each GPU now, and the most it ever was."""

    def __init__(self) -> None:
        self.lock = Lock()  # guards the fields
        self.now = dict.fromkeys(range(len(GPUS)), 0)
        self.most = dict.fromkeys(range(len(GPUS)), 0)
        self.granted = self.refused = self.oversold = 0

    def add(self, devices: list[int], size: int) -> None:
        with self.lock:
            self.granted += 1
            for device in devices:
                self.now[device] += size
                self.most[device] = max(self.most[device], self.now[device])
                self.oversold += self.now[device] > FREE_GB[device] * GIB

    def take(self, devices: list[int], size: int) -> None:
        with self.lock:
            for device in devices:
                self.now[device] -= size


def _churn(resources: Resources, tally: _Tally, seed: int, until: float) -> None:
    chance = random.Random(seed)
    held: list[tuple[str, list[int], int]] = []
    while time.monotonic() < until:
        if held and chance.random() < 0.5:
            _release(resources, tally, *held.pop(chance.randrange(len(held))))
            continue
        need = Need(vram=chance.randint(1, 30 * GIB), ram=1, disk=1, gpu_count=chance.choice([1, 1, 2, 4]))
        try:
            made = resources.reserve(Ask(job_id=f"job-{seed}", need=need))
        except CapacityExceeded:
            with tally.lock:
                tally.refused += 1
            continue
        tally.add(made["gpu_ids"], need.vram)
        held.append((made["id"], made["gpu_ids"], need.vram))
    while held:
        _release(resources, tally, *held.pop())


def _release(resources: Resources, tally: _Tally, reservation_id: str, devices: list[int], size: int) -> None:
    tally.take(devices, size)  # before, so that the count is never above what is really promised
    resources.release(reservation_id)


if __name__ == "__main__":
    show(measure)
