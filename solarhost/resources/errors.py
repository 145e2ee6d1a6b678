"""Why something could not be promised, read or given back."""

from solarhost.backends.base import CannotStart
from solarhost.errors import Conflict, SolarHostError, Unavailable
from solarhost.resources.readings import GIB, Gpu


def gb(size: int) -> float:
    """Bytes as the GiB of the API."""
    return round(size / GIB, 2)


def gb_down(size: int) -> float:
    """As `gb`, but never more than there is: what is shown as available can be had."""
    return max(0, size) * 100 // GIB / 100


class CapacityExceeded(Conflict):
    """More was asked for than is available in one dimension; `gpu` where one device is short."""

    status = 409

    def __init__(self, dimension: str, requested: int, available: int, gpu: Gpu | None = None, why: str = ""):
        where = f"{gpu}: " if gpu else ""
        super().__init__(
            f"{where}{gb(requested)} GB {dimension} requested, {gb_down(available)} GB available"
            + (f": {why}" if why else "")
        )
        self.dimension, self.requested, self.available, self.gpu = dimension, requested, available, gpu
        self.device_index: int | str | None = gpu.index if gpu else None

    def body(self) -> dict[str, object]:
        shown: dict[str, object] = {
            "error": "capacity_exceeded",
            "detail": str(self),
            "dimension": self.dimension,
            "requested_gb": gb(self.requested),
            "available_gb": gb_down(self.available),
        }
        if self.device_index is not None:
            shown["device_index"] = self.device_index
        return shown


class UnknownGpu(CapacityExceeded):
    """A device was named that this machine does not have (any more)."""

    def __init__(self, gpu_id: int | str, requested: int, devices: tuple[Gpu, ...]):
        there = ", ".join(str(gpu.gpu_id) for gpu in devices) or "none"
        super().__init__("vram", requested, 0, why=f"there is no GPU {gpu_id} here, the GPUs are: {there}")
        self.device_index = gpu_id


class TelemetryUnavailable(Unavailable):
    """What is free can't be known now, so nothing is promised."""

    def __init__(self, dimension: str, why: str):
        super().__init__(f"no {dimension} can be promised now: {why}")
        self.dimension = dimension

    def body(self) -> dict[str, object]:
        return {"error": "telemetry_unavailable", "detail": str(self), "dimension": self.dimension}


class ReservationRunning(Conflict):
    """The job of the reservation runs, and holds what was reserved."""

    def __init__(self, reservation_id: str, job_id: str):
        super().__init__(f"reservation {reservation_id} can't be released: its job {job_id} is running")


class GpuShort(CannotStart):
    """A start would need more memory than its device has free; the text says who holds it."""


class GpuUnreadable(CannotStart):
    """A start wants memory of a GPU, names none, and none can be chosen since the driver can't be asked."""


class StartCancelled(SolarHostError):
    """The start was called off while it waited for memory."""
