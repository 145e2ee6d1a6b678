"""Devices made up by `GPU_TELEMETRY_OVERRIDE`, for development and tests on a machine without GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

from solarhost.errors import SettingsError
from solarhost.resources.readings import GIB, Gpu, GpuReading, Memory

SHAPE = "each entry must be {index, name, total_gb, used_gb}, 0 <= used_gb <= total_gb, each index once"


class OverrideGpus:
    """Stands in for NVML everywhere. Its figures never change, and it knows no processes.

    Raises:
        SettingsError: an entry has not the documented shape.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]]):
        devices = tuple(sorted((_device(entry) for entry in entries), key=lambda gpu: gpu.index))
        if len({gpu.index for gpu in devices}) < len(devices):
            raise SettingsError(f"GPU_TELEMETRY_OVERRIDE names an index twice: {SHAPE}")
        self._reading = GpuReading(devices)

    def read(self) -> GpuReading:
        return self._reading


def _device(entry: Any) -> Gpu:
    try:
        index, name = entry["index"], entry["name"]
        total, used = float(entry["total_gb"]), float(entry["used_gb"])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"GPU_TELEMETRY_OVERRIDE: {entry!r} is not valid: {SHAPE}") from error
    if not isinstance(index, int) or index < 0 or not isinstance(name, str) or not 0 <= used <= total < 1e6:
        raise SettingsError(f"GPU_TELEMETRY_OVERRIDE: {entry!r} is not valid: {SHAPE}")
    return Gpu(index, name=name, memory=Memory(round(total * GIB), round(used * GIB)))
