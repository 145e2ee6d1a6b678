"""All sources of readings, each read by a thread of its own, so that a hung one holds nobody."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psutil

from solarhost.resources import processes
from solarhost.resources.readings import GpuReading, Memory, Readings
from solarhost.resources.sampler import Sample, Sampler
from solarhost.threads import join_by

logger = logging.getLogger(__name__)

READ_INTERVAL_S = 1.0
WALK_INTERVAL_S = 10.0  # workspaces can hold millions of files
STALE_S = 10.0  # an older reading is shown, but nothing is promised on it
FRESH_S = 3.0  # how long a start waits for the answer of a driver
FIRST_READING_S = 5.0  # NVML may take that long to initialise
HANGS = "the NVIDIA driver does not answer: a call hangs"


class GpuSource(Protocol):
    def read(self) -> GpuReading: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs for one ledger entry, so that its use can be measured."""

    entry_id: str
    pids: frozenset[int]
    in_container: bool
    workspace: Path | None = None


class Telemetry:
    """The newest readings of GPUs, RAM and disk, at most about a second old unless a source hangs.

    `workloads` says whose use to measure.
    """

    def __init__(self, gpus: GpuSource, disk_path: Path, workloads: Callable[[], Sequence[Workload]]):
        self._disk_path = disk_path
        self._workloads = workloads
        self._gpu = Sampler("loop-gpu", READ_INTERVAL_S, gpus.read)
        self._ram = Sampler("loop-ram", READ_INTERVAL_S, self._read_ram)
        self._disk = Sampler("loop-disk", READ_INTERVAL_S, self._read_disk)
        self._walk = Sampler("loop-usage", WALK_INTERVAL_S, self._read_workspaces)
        self._samplers = (self._gpu, self._ram, self._disk, self._walk)

    def start(self) -> None:
        """Start reading; returns once the first readings are there, or one takes too long."""
        for sampler in self._samplers:
            sampler.start()
        deadline = time.monotonic() + FIRST_READING_S
        for first in (self._gpu, self._ram, self._disk):
            first.wait_for_sample(deadline - time.monotonic())

    def close(self, deadline: float) -> None:
        started = [sampler for sampler in self._samplers if sampler.ident]
        for sampler in started:
            sampler.stop()
        for late in join_by(started, deadline):
            logger.warning("%s still waits for an answer of what it reads", late.name)

    def readings(self) -> Readings:
        """The newest of each source; what is too old is marked so, or left out."""
        gpu, ram, disk, walk = self._gpu.latest, self._ram.latest, self._disk.latest, self._walk.latest
        memory, ram_use = ram.value if ram and ram.age_s < STALE_S else (None, {})
        return Readings(
            gpu=_gpu_reading(gpu),
            ram=memory,
            disk=disk.value if disk and disk.age_s < STALE_S else None,
            ram_use=ram_use,
            disk_use=walk.value if walk else {},
            ages_s={
                "gpu": gpu.age_s if gpu else None,
                "ram": ram.age_s if ram else None,
                "disk": disk.age_s if disk else None,
            },
        )

    def fresh_readings(self) -> Readings:
        """GPUs and RAM read now; a source that does not answer within `FRESH_S` is marked unreadable."""
        answered = self._gpu.fresh(FRESH_S)
        self._ram.fresh(FRESH_S)
        readings = self.readings()
        if answered or readings.gpu.problem:
            return readings
        return replace(readings, gpu=GpuReading(readings.gpu.devices, HANGS))

    def _read_ram(self) -> tuple[Memory, Mapping[str, int]]:
        # Use is read before the total: what grows in between is counted twice, never not at all.
        uses = {}
        families = processes.Families()
        for workload in self._workloads():
            measure = processes.container_ram if workload.in_container else processes.tree_ram
            used = measure(workload.pids, families)
            if used is not None:
                uses[workload.entry_id] = used
        memory = psutil.virtual_memory()
        return Memory(memory.total, memory.total - memory.available), uses

    def _read_disk(self) -> Memory:
        usage = shutil.disk_usage(_existing(self._disk_path))
        # Blocks reserved for root are as good as used: `free` is what this user can have.
        return Memory(usage.total, usage.total - usage.free)

    def _read_workspaces(self) -> Mapping[str, int]:
        """Of those on the disk that is measured: what lies elsewhere frees nothing here."""
        device = _existing(self._disk_path).stat().st_dev
        return {
            workload.entry_id: folder_size(workload.workspace)
            for workload in self._workloads()
            if workload.workspace and _existing(workload.workspace).stat().st_dev == device
        }


def folder_size(folder: Path) -> int:
    """Bytes on disk of all files under `folder`; links are not followed, what vanishes counts 0."""
    total = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total


def _gpu_reading(sample: Sample[GpuReading] | None) -> GpuReading:
    if sample is None:
        return Readings().gpu
    if sample.age_s > STALE_S and sample.value.devices:
        return GpuReading(sample.value.devices, HANGS)
    return sample.value


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
