"""The body of `GET /resources`."""

from typing import Any

from solarhost.resources.accounts import Accounts, Figures, Use
from solarhost.resources.errors import gb, gb_down
from solarhost.resources.ledger import Charge, Entry, Reservation
from solarhost.resources.readings import Gpu


def snapshot(accounts: Accounts) -> dict[str, Any]:
    vram = accounts.vram
    return {
        "memory_type": "RAM" if vram is None else "VRAM",
        "vram": vram and dimension(vram),
        "ram": dimension(accounts.ram),
        "disk": dimension(accounts.disk),
        "gpus": [_gpu(gpu, accounts) for gpu in accounts.readings.gpu.devices],
        "reservations": [
            reservation(entry, accounts) for entry in accounts.entries if isinstance(entry, Reservation)
        ],
        "instance_charges": [
            _charge(entry, accounts) for entry in accounts.entries if isinstance(entry, Charge)
        ],
        "telemetry": {
            "gpu": _gpu_state(accounts),
            "gpu_problem": accounts.readings.gpu.problem,
            "age_s": {
                source: None if age is None else round(age, 1)
                for source, age in accounts.readings.ages_s.items()
            },
        },
    }


def dimension(figures: Figures) -> dict[str, float | None]:
    return {
        "total_gb": _gb(figures.total),
        "system_used_gb": _gb(figures.system_used),
        "reserved_headroom_gb": gb(figures.headroom),
        "reported_used_gb": _gb(figures.reported_used),
        "available_gb": _available(figures),
    }


def reservation(entry: Reservation, accounts: Accounts) -> dict[str, Any]:
    use = accounts.use(entry)
    return {
        "id": entry.id,
        "job_id": entry.job_id,
        "workload_type": entry.workload_type,
        "requester": entry.requester,
        "status": "running" if entry.id in accounts.running else "pending",
        "vram_gb": gb(entry.vram),
        "ram_gb": gb(entry.ram),
        "disk_gb": gb(entry.disk),
        "gpu_count": entry.gpu_count,
        "gpu_ids": _gpu_ids(entry, accounts),
        "actual_vram_gb": _gb(use.vram_total),
        "actual_ram_gb": _gb(use.ram),
        "actual_disk_gb": _gb(use.disk),
        "created_at": entry.created_at.isoformat(),
        "expires_at": entry.expires_at.isoformat(),
    }


def _charge(entry: Charge, accounts: Accounts) -> dict[str, Any]:
    use: Use = accounts.use(entry)
    return {
        "instance_id": entry.id,
        "vram_gb": gb(entry.vram),
        "gpu_ids": _gpu_ids(entry, accounts),
        "actual_vram_gb": _gb(use.vram_total),
        "actual_ram_gb": _gb(use.ram),
    }


def _gpu(gpu: Gpu, accounts: Accounts) -> dict[str, Any]:
    figures = accounts.device(gpu)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_type": "RAM" if gpu.unified else "VRAM",
        "total_gb": _gb(figures.total),
        "used_gb": _gb(figures.system_used),
        "reserved_headroom_gb": gb(figures.headroom),
        "available_gb": _available(figures),
        "mig_parent": gpu.parent,
        "problem": gpu.problem,
    }


def _gpu_ids(entry: Entry, accounts: Accounts) -> list[int | str]:
    """As callers name them; a device that is not there any more by the name it had."""
    shown: list[int | str] = []
    for key in entry.claim.devices:
        gpu = accounts.readings.gpu.find(key)
        shown.append(gpu.gpu_id if gpu else key)
    return shown


def _gpu_state(accounts: Accounts) -> str:
    if accounts.readings.gpu.problem:
        return "unreadable"
    return "ok" if accounts.readings.gpu.devices else "none"


def _gb(size: int | None) -> float | None:
    return None if size is None else gb(size)


def _available(figures: Figures) -> float | None:
    return None if figures.available is None else gb_down(figures.available)
