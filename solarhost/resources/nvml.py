"""NVIDIA GPUs through NVML. The only module that talks to `pynvml`; one thread calls it."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solarhost.resources import processes
from solarhost.resources.readings import Gpu, GpuProcess, GpuReading, Memory

try:
    import pynvml
except ImportError:  # the extra `nvidia` is not installed
    pynvml = None

logger = logging.getLogger(__name__)

REINIT_S = 10.0  # a lost GPU may come back after a reload; asking costs an initialisation
NVIDIA = "0x10de"
DRIVER_FILES = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
PCI_DEVICES = Path("/sys/bus/pci/devices")


class NvmlGpus:
    """Reads all devices; keeps NVML initialised, and initialises it again when the driver was reloaded.

    Every field may fail alone. Identities stay known while a device, or the whole driver, can't be asked.
    """

    def __init__(self) -> None:
        self._ready = False
        self._ready_at = 0.0
        self._known: tuple[Gpu, ...] = ()  # devices of the last good reading

    def read(self) -> GpuReading:
        if pynvml is None:
            return self._absent("the Python package nvidia-ml-py is missing: install solar-host[nvidia]")
        if not self._ready:
            try:
                pynvml.nvmlInit()
            except (
                pynvml.NVMLError_LibraryNotFound,
                pynvml.NVMLError_DriverNotLoaded,
                pynvml.NVMLError_FunctionNotFound,
            ) as error:
                return self._absent(f"NVML can't be used: {error}")
            except pynvml.NVMLError as error:
                return self._unreadable(_explain(error))
            self._ready, self._ready_at = True, time.monotonic()
        return self._read_devices()

    def _read_devices(self) -> GpuReading:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._forget_driver()
            return self._unreadable(_explain(error))
        if count == 0:
            return self._absent("the NVIDIA driver reports no GPU any more")
        devices: list[Gpu] = []
        slices: list[Gpu] = []
        for index in range(count):
            gpu, parts = self._read_device(index, count + len(slices))
            slices += parts
            if not parts:
                devices.append(gpu)
        found = (*devices, *slices)
        failed = [gpu for gpu in found if gpu.problem]
        if len(failed) == len(found) or (failed and time.monotonic() - self._ready_at > REINIT_S):
            self._forget_driver()
        self._known = found
        return GpuReading(found)

    def _read_device(self, index: int, first_slice: int) -> tuple[Gpu, list[Gpu]]:
        """The GPU, and its MIG instances where it is cut into some."""
        before = next((gpu for gpu in self._known if gpu.index == index and gpu.parent is None), Gpu(index))
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            return Gpu(index, before.uuid, before.name, problem=_explain(error)), []
        gpu = _describe(handle, Gpu(index, before.uuid, before.name))
        try:
            mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError:  # not supported: not a data centre GPU
            mig = False
        if not mig:
            return gpu, []
        parts: list[Gpu] = []
        for position in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
            if part is not None:
                parts.append(_describe(part, Gpu(first_slice + len(parts), parent=index)))
        empty = "MIG is on, but the GPU has no MIG instance: create one with `nvidia-smi mig -cgi`"
        return Gpu(index, gpu.uuid, gpu.name, problem=empty), parts

    def _absent(self, why: str) -> GpuReading:
        """No GPU, unless one was seen before or the machine has one."""
        if self._known or _hardware_present():
            self._forget_driver()
            return self._unreadable(why)
        return GpuReading()

    def _unreadable(self, why: str) -> GpuReading:
        blank = (
            Gpu(gpu.index, gpu.uuid, gpu.name, unified=gpu.unified, parent=gpu.parent, problem=why)
            for gpu in self._known
        )
        return GpuReading(tuple(blank), why)

    def _forget_driver(self) -> None:
        """Initialise anew at the next reading."""
        if self._ready:
            self._ready = False
            _ask(pynvml.nvmlShutdown)


def _describe(handle: Any, known: Gpu) -> Gpu:
    uuid, name = _ask(pynvml.nvmlDeviceGetUUID, handle), _ask(pynvml.nvmlDeviceGetName, handle)
    memory, unified, problem = None, False, None
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        memory = Memory(info.total, info.total - info.free)
    except pynvml.NVMLError_NotSupported:
        unified = True  # such as GB10: the GPU uses the machine's RAM
    except pynvml.NVMLError as error:
        problem = _explain(error)
    return Gpu(
        index=known.index,
        uuid=uuid or known.uuid,
        name=name or known.name,
        memory=memory,
        processes=_processes(handle),
        unified=unified,
        parent=known.parent,
        problem=problem,
    )


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    """Those that hold memory of the device; None when the driver tells of no kind of them."""
    lists = [
        _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
        _ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle),
        _ask(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle),
    ]
    known = [entries for entries in lists if entries is not None]
    if not known:
        return None
    used: dict[int, int | None] = {}
    for entry in (entry for entries in known for entry in entries):
        # A process that computes and draws is in two lists, with the same figure.
        amounts = [a for a in (used.get(entry.pid), entry.usedGpuMemory) if a is not None]
        used[entry.pid] = max(amounts, default=None)
    return tuple(
        GpuProcess(pid, amount, processes.name(pid), processes.lineage(pid))
        for pid, amount in sorted(used.items())
    )


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, None when NVML has none."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def _explain(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        return (
            "the NVIDIA library and the driver have different versions (driver/library version mismatch): "
            "reload the driver or reboot, then restart the agent"
        )
    if isinstance(error, pynvml.NVMLError_GpuIsLost):
        return "GPU is lost: it fell off the bus, see `dmesg | grep Xid`; a reset or reboot brings it back"
    return f"the NVIDIA driver answered: {error}"


def _hardware_present() -> bool:
    """Whether this machine has an NVIDIA GPU or its driver, whatever NVML says."""
    return any(path.exists() for path in DRIVER_FILES) or any(_is_gpu(path) for path in PCI_DEVICES.glob("*"))


def _is_gpu(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text().strip()
        return vendor == NVIDIA and (device / "class").read_text().startswith("0x03")  # a display controller
    except OSError:
        return False
