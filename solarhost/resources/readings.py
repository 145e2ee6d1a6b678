"""What telemetry reports: frozen values, sizes in bytes, None where something could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Memory:
    """A pool of bytes (a GPU's memory, RAM, a file system). `used` is whatever can't be had any more."""

    total: int
    used: int

    @property
    def free(self) -> int:
        return self.total - self.used


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of one device."""

    pid: int
    used: int | None  # None where the driver does not tell
    name: str | None
    lineage: frozenset[int]  # its pid, its session and its ancestors, when it was seen


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device that work can be put on: a whole GPU, or one MIG instance of a GPU."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory: Memory | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unified: bool = False  # it has no memory of its own, but shares the RAM
    parent: int | None = None  # the index of the GPU that a MIG instance is a part of
    problem: str | None = None  # why `memory` could not be read

    @property
    def gpu_id(self) -> int | str:
        """What callers and `CUDA_VISIBLE_DEVICES` call it: CUDA knows MIG instances by UUID only."""
        return self.index if self.parent is None or self.uuid is None else self.uuid

    @property
    def key(self) -> str:
        """What the ledger calls it: the UUID stays when a driver reload renumbers the devices."""
        return self.uuid or str(self.index)

    def answers_to(self, gpu_id: int | str) -> bool:
        return str(gpu_id) in (str(self.index), self.uuid)

    def __str__(self) -> str:
        return f"GPU {self.gpu_id} ({self.name})" if self.name else f"GPU {self.gpu_id}"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All devices. No device and no problem means that there is no GPU in this machine.

    With a `problem` the driver can't be asked; `devices` are then the ones known from before.
    """

    devices: tuple[Gpu, ...] = ()
    problem: str | None = None

    def find(self, gpu_id: int | str) -> Gpu | None:
        return next((gpu for gpu in self.devices if gpu.answers_to(gpu_id)), None)


@dataclass(frozen=True, slots=True)
class Readings:
    """The newest reading of every source. `ram_use` and `disk_use` are by the id of a ledger entry."""

    gpu: GpuReading = GpuReading(problem="the NVIDIA driver has not answered yet")
    ram: Memory | None = None
    disk: Memory | None = None
    ram_use: Mapping[str, int] = field(default_factory=dict)
    disk_use: Mapping[str, int] = field(default_factory=dict)
    ages_s: Mapping[str, float | None] = field(default_factory=dict)  # gpu, ram, disk; None: never read
