"""The accounting formula, applied to one moment. Pure: readings and entries in, figures out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solarhost.resources.ledger import Entry
from solarhost.resources.readings import Gpu, Memory, Readings


@dataclass(frozen=True, slots=True)
class Figures:
    """One dimension in bytes; None where telemetry is missing."""

    total: int | None
    system_used: int | None
    headroom: int  # promised and not used yet

    @property
    def reported_used(self) -> int | None:
        return None if self.system_used is None else self.system_used + self.headroom

    @property
    def available(self) -> int | None:
        if self.total is None or self.reported_used is None:
            return None
        return self.total - self.reported_used


@dataclass(frozen=True, slots=True)
class Use:
    """What an entry really uses, None where that is not known; all None before it runs."""

    vram: Mapping[str, int] | None = None  # by device key
    ram: int | None = None
    disk: int | None = None

    @property
    def vram_total(self) -> int | None:
        return None if self.vram is None else sum(self.vram.values())


class Accounts:
    """What there is, what is used and what is promised.

    `running` has the processes of each entry that runs, by its id. What a running entry uses is in
    the measured figures, so only the rest of its promise is added to them:

        reported = measured + sum of max(promised - actual, 0)
    """

    def __init__(self, readings: Readings, entries: Sequence[Entry], running: Mapping[str, frozenset[int]]):
        self.readings = readings
        self.entries = entries
        self.running = running
        self._uses = {entry.id: self._measure(entry) for entry in entries}

    def use(self, entry: Entry) -> Use:
        return self._uses[entry.id]

    def device(self, gpu: Gpu) -> Figures:
        """Of one GPU; of the RAM when it has no memory of its own."""
        if gpu.unified:
            return self.ram
        headroom = sum(
            max(entry.claim.vram - (self.use(entry).vram or {}).get(gpu.key, 0), 0)
            for entry in self.entries
            if entry.claim.covers(gpu)
        )
        return _figures(gpu.memory, headroom)

    @property
    def vram(self) -> Figures | None:
        """Of all GPUs together that have memory of their own; None when there are none.

        A device that can't be read adds neither memory nor headroom.
        """
        own = [gpu for gpu in self.readings.gpu.devices if not gpu.unified]
        if not own and (self.readings.gpu.devices or not self.readings.gpu.problem):
            return None
        devices = [self.device(gpu) for gpu in own if gpu.memory]
        if not devices:
            promised = sum(entry.claim.vram * len(entry.claim.devices) for entry in self.entries)
            return Figures(None, None, promised)
        return Figures(
            sum(figures.total or 0 for figures in devices),
            sum(figures.system_used or 0 for figures in devices),
            sum(figures.headroom for figures in devices),
        )

    @property
    def ram(self) -> Figures:
        headroom = sum(max(entry.claim.ram - (self.use(entry).ram or 0), 0) for entry in self.entries)
        return _figures(self.readings.ram, headroom)

    @property
    def disk(self) -> Figures:
        headroom = sum(max(entry.claim.disk - (self.use(entry).disk or 0), 0) for entry in self.entries)
        return _figures(self.readings.disk, headroom)

    def pick(self, count: int) -> list[Gpu]:
        """The `count` devices with most free memory after headroom, lowest index first among equals."""
        free = {gpu.index: self.device(gpu).available for gpu in self.readings.gpu.devices}
        usable = [gpu for gpu in self.readings.gpu.devices if free[gpu.index] is not None]
        return sorted(usable, key=lambda gpu: (-(free[gpu.index] or 0), gpu.index))[:count]

    def _measure(self, entry: Entry) -> Use:
        pids = self.running.get(entry.id)
        if pids is None:
            return Use()
        return Use(
            vram=self._vram_use(pids),
            ram=self.readings.ram_use.get(entry.id),
            disk=self.readings.disk_use.get(entry.id),
        )

    def _vram_use(self, pids: frozenset[int]) -> dict[str, int] | None:
        """On every device, since nothing keeps a job to those that were promised to it."""
        uses = {
            gpu.key: sum(process.used or 0 for process in gpu.processes if process.lineage & pids)
            for gpu in self.readings.gpu.devices
            if gpu.processes is not None
        }
        return uses or None


def _figures(memory: Memory | None, headroom: int) -> Figures:
    return Figures(memory.total, memory.used, headroom) if memory else Figures(None, None, headroom)
