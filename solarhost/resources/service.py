"""Resources: the one face of telemetry and ledger."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any
from uuid import uuid4

from solarhost.errors import InvalidRequest, Unavailable
from solarhost.problems import Problems
from solarhost.resources import render
from solarhost.resources.accounts import Accounts, Figures
from solarhost.resources.allocation import Need, allocate
from solarhost.resources.charges import InstanceCharges, Running
from solarhost.resources.errors import ReservationRunning
from solarhost.resources.jobview import JobView
from solarhost.resources.ledger import Claim, Entry, Ledger, Reservation
from solarhost.resources.nvml import NvmlGpus
from solarhost.resources.override import OverrideGpus
from solarhost.resources.telemetry import GpuSource, Telemetry, Workload
from solarhost.settings import Settings
from solarhost.threads import PeriodicThread, join_by
from solarhost.times import now

logger = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 1.0  # beside the reading's own second: what is shown is at most two seconds old


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for a reservation; `expires_at` None means the default time."""

    job_id: str
    need: Need
    workload_type: str = "training"
    requester: str | None = None
    expires_at: datetime | None = None


class Resources:
    """Telemetry, reservations and the charges of instances. Safe from any thread.

    `jobs` tells of a job by its id, None when there is none; it must not call back into this.
    The snapshot is made once a second and at each change; `snapshot` and `snapshot_bytes` only hand it
    out, so they never wait.
    """

    def __init__(self, settings: Settings, problems: Problems, jobs: Callable[[str], JobView | None]):
        override = settings.gpu_telemetry_override
        gpus: GpuSource = NvmlGpus() if override is None else OverrideGpus(override)
        self._problems = problems
        self._jobs = jobs
        self._default_ttl = timedelta(seconds=settings.default_reservation_ttl_seconds)
        self._ledger = Ledger()
        self._telemetry = Telemetry(gpus, settings.models_dir, self._workloads)
        self.charges = InstanceCharges(
            self._ledger, self._telemetry, self._running, self._publish, settings.vram_release_timeout_s
        )
        self._publishing = Lock()  # guards the order in which snapshots replace each other
        self._show(Accounts(self._telemetry.readings(), [], {}))
        self.loop = PeriodicThread("loop-resources", PUBLISH_INTERVAL_S, self._publish)

    def start(self) -> None:
        """Start reading. Returns with the first readings, or without them when a driver hangs."""
        self._telemetry.start()
        self._publish()
        self.loop.start()

    def close(self, deadline: float) -> None:
        """Stop reading; what is promised stays known."""
        if self.loop.ident:
            self.loop.stop()
            join_by([self.loop], deadline)
        self._telemetry.close(deadline)

    # Reservations

    def reserve(self, ask: Ask) -> dict[str, Any]:
        """Promise what is asked for, or nothing; the reservation as in `GET /resources`.

        Raises:
            CapacityExceeded: it does not fit.
            TelemetryUnavailable: what is free can't be known.
            InvalidRequest: it would expire in the past.
        """
        created = now()
        expires = ask.expires_at or created + self._default_ttl
        if expires <= created:
            raise InvalidRequest(f"expires_at {expires.isoformat()} has passed already")
        self._drop_expired()
        readings, running = self._telemetry.readings(), self._running()
        draft = Reservation(
            id=f"res-{uuid4().hex}",
            job_id=ask.job_id,
            workload_type=ask.workload_type,
            requester=ask.requester,
            vram=ask.need.vram,
            ram=ask.need.ram,
            disk=ask.need.disk,
            gpu_count=ask.need.gpu_count,
            created_at=created,
            expires_at=expires,
            claim=Claim(),
        )
        made = self._ledger.reserve(
            draft, lambda entries: allocate(ask.need, Accounts(readings, entries, running))
        )
        logger.info("reservation %s for job %s: %s", made.id, made.job_id, made.claim)
        self._publish()
        return render.reservation(made, Accounts(readings, [made], self._running()))

    def release(self, reservation_id: str) -> None:
        """Give a reservation back.

        Raises:
            NotFound: there is none of that id.
            ReservationRunning: its job holds what was promised.
        """
        reservation = self._ledger.get(reservation_id)
        view = self._jobs(reservation.job_id)
        if view and view.running:
            raise ReservationRunning(reservation_id, reservation.job_id)
        self._ledger.release(reservation_id)
        logger.info("reservation %s released", reservation_id)
        self._publish()

    # What is shown

    def snapshot_bytes(self) -> bytes:
        """The body of `GET /resources`."""
        return self._snapshot

    def snapshot(self) -> dict[str, Any]:
        """The same as a value of its own."""
        shown: dict[str, Any] = json.loads(self._snapshot)
        return shown

    def reservations(self) -> dict[str, Any]:
        """The block of `host_health`: how many, and the dimensions."""
        shown = self.snapshot()
        return {
            "active_count": len(shown["reservations"]),
            **{dimension: shown[dimension] for dimension in ("vram", "ram", "disk")},
        }

    def memory(self) -> dict[str, Any]:
        """`GET /memory`: the GPUs' memory if there are GPUs, else RAM, as measured (nothing promised).

        Raises:
            Unavailable: it can't be read.
        """
        accounts = self._accounts
        figures = accounts.vram or accounts.ram
        if figures.total is None or figures.system_used is None:
            raise Unavailable(accounts.readings.gpu.problem or "the memory of this machine could not be read")
        return {
            **_measured(figures),
            "percent": round(100 * figures.system_used / figures.total, 2) if figures.total else 0.0,
            "memory_type": "RAM" if accounts.vram is None else "VRAM",
        }

    def health_memory(self) -> list[dict[str, Any]]:
        """The pools of memory that can be read, VRAM first."""
        accounts = self._accounts
        pools = {"VRAM": accounts.vram, "RAM": accounts.ram}
        return [
            {"memory_type": kind, **_measured(figures)}
            for kind, figures in pools.items()
            if figures and figures.total is not None
        ]

    def disk(self) -> dict[str, float | None]:
        """The file system of `MODELS_DIR`; null when it does not answer."""
        return _measured(self._accounts.disk)

    @property
    def gpu_type(self) -> str:
        """`nvidia_cuda` (also while its driver can't be asked), `apple_mps` or `cpu`."""
        gpu = self._accounts.readings.gpu
        if gpu.devices or gpu.problem:
            return "nvidia_cuda"
        return "apple_mps" if sys.platform == "darwin" else "cpu"

    def gpu_count(self) -> int | None:
        """None while it can't be known."""
        gpu = self._accounts.readings.gpu
        return len(gpu.devices) if gpu.devices or not gpu.problem else None

    # Upkeep

    def _publish(self) -> None:
        """Make the snapshot anew. The lock is held for memory only; `jobs` is asked before."""
        self._drop_expired()
        running = self._running()
        with self._publishing:
            self._show(Accounts(self._telemetry.readings(), self._ledger.entries(), running))
        self._report_problems()

    def _show(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._snapshot = json.dumps(render.snapshot(accounts), separators=(",", ":")).encode()

    def _running(self) -> Running:
        """The processes of all entries that run, by entry."""
        return {workload.entry_id: workload.pids for workload in self._workloads()}

    def _workloads(self) -> list[Workload]:
        found = (self._workload(entry) for entry in self._ledger.entries())
        return [workload for workload in found if workload]

    def _workload(self, entry: Entry) -> Workload | None:
        """None for what does not run."""
        if not isinstance(entry, Reservation):
            return Workload(entry.id, frozenset({entry.pid}), in_container=False) if entry.pid else None
        view = self._jobs(entry.job_id)
        if view is None or not view.running:
            return None
        return Workload(entry.id, frozenset(view.pids), in_container=True, workspace=view.workspace)

    def _drop_expired(self) -> None:
        """A reservation whose job runs outlives its time: the job holds what was promised."""
        moment = now()
        for entry in self._ledger.entries():
            if isinstance(entry, Reservation) and entry.expires_at <= moment:
                view = self._jobs(entry.job_id)
                if (view is None or not view.running) and self._ledger.expire(entry):
                    logger.info("reservation %s of job %s expired", entry.id, entry.job_id)

    def _report_problems(self) -> None:
        readings = self._accounts.readings
        sick = [f"{gpu}: {gpu.problem}" for gpu in readings.gpu.devices if gpu.problem]
        told = {
            "gpu": readings.gpu.problem or "; ".join(sick),
            "ram": "" if readings.ram else "the RAM could not be read",
            "disk": "" if readings.disk else "the disk of MODELS_DIR does not answer",
        }
        for key, sentence in told.items():
            if sentence:
                self._problems.report(key, sentence)
            else:
                self._problems.clear(key)


def _measured(figures: Figures) -> dict[str, float | None]:
    shown = render.dimension(Figures(figures.total, figures.system_used, 0))
    return {
        "total_gb": shown["total_gb"],
        "used_gb": shown["system_used_gb"],
        "available_gb": shown["available_gb"],
    }
