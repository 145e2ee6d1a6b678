"""GPU, RAM and disk for Prometheus."""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from solarhost.resources.readings import GIB

FIGURES = {
    "total_gb": "total",
    "used_gb": "used",
    "reserved_headroom_gb": "headroom",
    "available_gb": "available",
}


class ResourcesCollector:
    """Turns the newest snapshot into gauges at each scrape; what is unknown has no sample."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]]):
        self._snapshot = snapshot

    def collect(self) -> Iterable[GaugeMetricFamily]:
        shown = self._snapshot()
        sizes = GaugeMetricFamily(
            "solarhost_resource_bytes",
            "Total, used, promised but not used yet (headroom) and available bytes.",
            labels=["resource", "figure"],
        )
        for resource in ("vram", "ram", "disk"):
            block = shown.get(resource) or {}
            _add(sizes, [resource], {**block, "used_gb": block.get("system_used_gb")})
        gpus = GaugeMetricFamily(
            "solarhost_gpu_bytes", "The same of each GPU.", labels=["gpu", "uuid", "name", "figure"]
        )
        for gpu in shown.get("gpus", []):
            _add(gpus, [str(gpu["index"]), gpu["uuid"] or "", gpu["name"] or ""], gpu)
        reservations = GaugeMetricFamily(
            "solarhost_reservations", "Reservations by status.", labels=["status"]
        )
        for status in ("pending", "running"):
            count = sum(1 for entry in shown.get("reservations", []) if entry["status"] == status)
            reservations.add_metric([status], count)
        readable = GaugeMetricFamily(
            "solarhost_gpu_telemetry_up",
            "1 when the GPUs can be read, 0 when the driver can't be asked; absent without GPUs.",
        )
        state = shown.get("telemetry", {}).get("gpu")
        if state in ("ok", "unreadable"):
            readable.add_metric([], float(state == "ok"))
        ages = GaugeMetricFamily(
            "solarhost_telemetry_age_seconds", "Age of the newest reading.", labels=["source"]
        )
        for source, age in shown.get("telemetry", {}).get("age_s", {}).items():
            if age is not None:
                ages.add_metric([source], age)
        return [sizes, gpus, reservations, readable, ages]


def _add(family: GaugeMetricFamily, labels: list[str], block: dict[str, Any]) -> None:
    for key, figure in FIGURES.items():
        if block.get(key) is not None:
            family.add_metric([*labels, figure], block[key] * GIB)
