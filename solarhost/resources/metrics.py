"""GPU, RAM and disk for Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from solarhost.resources.readings import GIB

FIGURES = {
    "total_gb": "total",
    "used_gb": "used",
    "reserved_headroom_gb": "headroom",
    "available_gb": "available",
}


def gauges(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    """The gauges of one snapshot; what is unknown has no sample."""
    sizes = GaugeMetricFamily(
        "solarhost_resource_bytes",
        "Total, used, promised but not used yet (headroom) and available bytes.",
        labels=["resource", "figure"],
    )
    for resource in ("vram", "ram", "disk"):
        block = snapshot[resource] or {}
        _add(sizes, [resource], {**block, "used_gb": block.get("system_used_gb")})
    yield sizes
    gpus = GaugeMetricFamily(
        "solarhost_gpu_bytes", "The same of each GPU.", labels=["gpu", "uuid", "name", "figure"]
    )
    for gpu in snapshot["gpus"]:
        _add(gpus, [str(gpu["index"]), gpu["uuid"] or "", gpu["name"] or ""], gpu)
    yield gpus
    reservations = GaugeMetricFamily("solarhost_reservations", "Reservations by status.", labels=["status"])
    for status in ("pending", "running"):
        reservations.add_metric([status], sum(r["status"] == status for r in snapshot["reservations"]))
    yield reservations
    readable = GaugeMetricFamily(
        "solarhost_gpu_telemetry_up",
        "1 when the GPUs can be read, 0 when the driver can't be asked; absent without GPUs.",
    )
    if snapshot["telemetry"]["gpu"] != "none":
        readable.add_metric([], float(snapshot["telemetry"]["gpu"] == "ok"))
    yield readable
    ages = GaugeMetricFamily(
        "solarhost_telemetry_age_seconds", "Age of the newest reading.", labels=["source"]
    )
    for source, age in snapshot["telemetry"]["age_s"].items():
        if age is not None:
            ages.add_metric([source], age)
    yield ages


def _add(family: GaugeMetricFamily, labels: list[str], block: Mapping[str, Any]) -> None:
    for key, figure in FIGURES.items():
        if block.get(key) is not None:
            family.add_metric([*labels, figure], block[key] * GIB)
