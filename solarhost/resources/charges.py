"""GPU memory of instances: checked and promised before the spawn, given back when all is gone."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Lock

from solarhost.resources import processes
from solarhost.resources.accounts import Accounts
from solarhost.resources.allocation import Need, allocate
from solarhost.resources.errors import (
    CapacityExceeded,
    GpuShort,
    GpuUnreadable,
    StartCancelled,
    TelemetryUnavailable,
    gb,
    gb_down,
)
from solarhost.resources.ledger import Charge, Claim, Entry, Ledger
from solarhost.resources.readings import GIB, Gpu, Readings
from solarhost.resources.telemetry import Telemetry

logger = logging.getLogger(__name__)

POLL_S = 0.25
GROWING_S = 1.0  # free memory that grew within this time is likely to grow on

Running = dict[str, frozenset[int]]


class InstanceCharges:
    """The charges of all instances, at most one each. Safe from any thread.

    A charge lasts from `admit` (or `adopt`) to `release`, which may be called any number of times.
    """

    def __init__(
        self,
        ledger: Ledger,
        telemetry: Telemetry,
        running: Callable[[], Running],
        on_change: Callable[[], None],
        release_timeout_s: float,
    ):
        self._ledger = ledger
        self._telemetry = telemetry
        self._running = running
        self._on_change = on_change
        self._release_timeout_s = release_timeout_s
        self._lock = Lock()  # guards _released_at
        self._released_at = time.monotonic()  # what ended with an earlier agent still gives back, too

    def admit(
        self,
        instance_id: str,
        gpu_ids: Sequence[int | str] | None,
        vram_gb: float | None,
        cancelled: Event,
    ) -> list[int | str]:
        """Read the devices afresh, promise `vram_gb` on each, and return them for `CUDA_VISIBLE_DEVICES`.

        Without `gpu_ids` the device with most room is chosen, if any memory is wanted. While a process
        that just ended still gives memory back, this waits, up to `VRAM_RELEASE_TIMEOUT_S`.

        Raises:
            GpuShort: it does not fit; names the device, what is free and needed, and who holds the rest.
            GpuUnreadable: a device would have to be chosen, and the driver can't be asked.
            StartCancelled: `cancelled` was set.
        """
        need = Need(vram=round((vram_gb or 0) * GIB), gpu_ids=list(gpu_ids) if gpu_ids else None)
        if not need.vram and not need.gpu_ids:
            return []
        draft = Charge(id=instance_id, vram=need.vram, claim=Claim())
        began = time.monotonic()
        growing_until, free_before = began + GROWING_S, None
        while not cancelled.is_set():
            readings = self._telemetry.fresh_readings()
            try:
                charge = self._ledger.charge(draft, partial(_decide, need, readings, self._running()))
            except CapacityExceeded as short:
                now = time.monotonic()
                if free_before is not None and short.available > free_before:
                    growing_until = now + GROWING_S
                free_before = short.available
                if not self._worth_waiting(short, now, began, growing_until):
                    raise GpuShort(_explain(short, readings, now - began)) from short
                cancelled.wait(POLL_S)
            else:
                self._on_change()
                return _gpu_ids(need, charge.claim, readings)
        raise StartCancelled(f"instance {instance_id}: the start was called off")

    def adopt(
        self, instance_id: str, pid: int, gpu_ids: Sequence[int | str] | None, vram_gb: float | None
    ) -> None:
        """Charge an instance that runs already; nothing is checked, since it has what it has.

        Where `gpu_ids` names no device, the one that was chosen at its start is in its environment.
        """
        devices = list(gpu_ids or []) or processes.visible_gpus(pid)
        need = Need(vram=round((vram_gb or 0) * GIB), gpu_ids=devices)
        if not need.vram and not need.gpu_ids:
            return  # as at its start
        readings = self._telemetry.readings()
        draft = Charge(id=instance_id, vram=need.vram, claim=Claim(), pid=pid)
        self._ledger.charge(draft, lambda _: _unchecked(need, readings))
        self._on_change()

    def spawned(self, instance_id: str, pid: int) -> None:
        """The instance's processes are the descendants of `pid`; what they use is measured from now on."""
        self._ledger.spawned(instance_id, pid)
        self._on_change()

    def release(self, instance_id: str) -> None:
        """All its processes are gone, or the start failed before there were any."""
        with self._lock:
            self._released_at = time.monotonic()
        if self._ledger.discharge(instance_id):
            self._on_change()

    def _worth_waiting(self, short: CapacityExceeded, now: float, began: float, growing_until: float) -> bool:
        """Whether memory may come back soon: something just ended, or there is more at each look."""
        if short.gpu is None or short.gpu.memory is None or short.requested > short.gpu.memory.total:
            return False
        with self._lock:
            ended_until = self._released_at + self._release_timeout_s
        return now < min(began + self._release_timeout_s, max(ended_until, growing_until))


def _decide(need: Need, readings: Readings, running: Running, entries: Sequence[Entry]) -> Claim:
    try:
        return allocate(need, Accounts(readings, entries, running))
    except TelemetryUnavailable as error:
        if not need.gpu_ids:
            raise GpuUnreadable(
                f"{gb(need.vram)} GB of GPU memory are needed, but {error}; "
                "name the device in gpu_ids to start without the check"
            ) from error
        logger.warning("%s; starting on GPU %s unchecked", error, need.gpu_ids)
        return _unchecked(need, readings)


def _unchecked(need: Need, readings: Readings) -> Claim:
    """The claim on the devices named, without a look at what is free."""
    found: list[tuple[str, Gpu | None]] = []
    for gpu_id in need.gpu_ids or []:
        gpu = readings.gpu.find(gpu_id)
        found.append((gpu.key if gpu else str(gpu_id), gpu))
    if not readings.gpu.devices and not readings.gpu.problem:
        return Claim(ram=need.vram)
    shared = sum(1 for _, gpu in found if gpu and gpu.unified)
    return Claim(tuple(key for key, _ in found), need.vram if shared < len(found) else 0, need.vram * shared)


def _gpu_ids(need: Need, claim: Claim, readings: Readings) -> list[int | str]:
    """As the caller named them, else those chosen."""
    if need.gpu_ids:
        named = (readings.gpu.find(gpu_id) for gpu_id in need.gpu_ids)
        return [gpu.gpu_id if gpu else given for gpu, given in zip(named, need.gpu_ids, strict=True)]
    return [gpu.gpu_id for gpu in readings.gpu.devices if claim.covers(gpu)]


def _explain(short: CapacityExceeded, readings: Readings, waited_s: float) -> str:
    waited = f" after waiting {waited_s:.0f} s for memory to be given back" if waited_s > 1 else ""
    if short.gpu is None or short.gpu.memory is None:
        return f"{short}{waited}"
    free = short.gpu.memory.free
    promised = max(0, free - short.available)
    others = f", {gb(promised)} GB of it promised to others" if promised else ""
    return (
        f"{short.gpu}: {gb_down(free)} GB free{others}, {gb(short.requested)} GB needed{waited}; "
        f"{_holders(readings.gpu.find(short.gpu.key) or short.gpu)}"
    )


def _holders(gpu: Gpu) -> str:
    if gpu.processes is None:
        return "the driver does not tell which processes hold the rest"
    if not gpu.processes:
        return "no process holds any of it"
    largest = sorted(gpu.processes, key=lambda process: -(process.used or 0))
    shown = (
        f"pid {process.pid} ({process.name or 'unknown'}, "
        f"{'?' if process.used is None else gb(process.used)} GB)"
        for process in largest[:10]
    )
    return f"held by {', '.join(shown)}"
