"""Devices made up by `GPU_TELEMETRY_OVERRIDE`, for development and tests on a machine without GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

from solarhost.resources.readings import GIB, Gpu, GpuReading, Memory


class OverrideGpus:
    """Stands in for NVML everywhere. Its figures never change, and it knows no processes."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]):
        """`entries` as `setting_values.gpus` lets them through."""
        self._reading = GpuReading(tuple(sorted(map(_device, entries), key=lambda gpu: gpu.index)))

    def read(self) -> GpuReading:
        return self._reading


def _device(entry: Mapping[str, Any]) -> Gpu:
    total, used = (round(entry[name] * GIB) for name in ("total_gb", "used_gb"))
    return Gpu(entry["index"], name=entry["name"], memory=Memory(total, used))
