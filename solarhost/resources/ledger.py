"""What is promised to jobs (reservations) and to instances (charges). In memory only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock

from solarhost.errors import Conflict, NotFound
from solarhost.resources.readings import Gpu

MAX_RESERVATIONS = 1000  # each costs time in every snapshot


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes promised: `vram` on each of `devices` (their keys), and the rest."""

    devices: tuple[str, ...] = ()
    vram: int = 0
    ram: int = 0
    disk: int = 0

    def covers(self, gpu: Gpu) -> bool:
        """A device is known by its index only while the driver could not be asked for more."""
        return gpu.key in self.devices or str(gpu.index) in self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Capacity promised to a job before it starts; sizes as they were asked for."""

    id: str
    job_id: str
    workload_type: str
    requester: str | None
    vram: int  # of each GPU
    ram: int
    disk: int
    gpu_count: int
    created_at: datetime
    expires_at: datetime
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Memory promised to an instance, from before its spawn until its processes are gone."""

    id: str  # of the instance
    vram: int
    claim: Claim
    pid: int | None = None  # the leader of its processes, once spawned


Entry = Reservation | Charge
Decide = Callable[[Sequence[Entry]], Claim]


class Ledger:
    """All entries, under one lock. Safe from any thread.

    To look at what is promised and to promise more is one step here, so nothing is promised twice.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards both; taken last, nothing is called under it but `decide`
        self._reservations: dict[str, Reservation] = {}
        self._charges: dict[str, Charge] = {}

    def entries(self) -> list[Entry]:
        with self._lock:
            return self._entries()

    def reserve(self, draft: Reservation, decide: Decide) -> Reservation:
        """Add the reservation with the claim that `decide` makes of the present entries, or raises.

        Raises:
            Conflict: there are `MAX_RESERVATIONS` already.
        """
        with self._lock:
            if len(self._reservations) >= MAX_RESERVATIONS:
                raise Conflict(f"there are {MAX_RESERVATIONS} reservations already: release some first")
            reservation = replace(draft, claim=decide(self._entries()))
            self._reservations[reservation.id] = reservation
            return reservation

    def charge(self, draft: Charge, decide: Decide) -> Charge:
        """Add or replace the charge of one instance; what it had before does not count against it."""
        with self._lock:
            others = [entry for entry in self._entries() if entry.id != draft.id]
            charge = replace(draft, claim=decide(others))
            self._charges[charge.id] = charge
            return charge

    def spawned(self, instance_id: str, pid: int) -> None:
        """Note whose memory the charge covers; nothing happens when it was given back meanwhile."""
        with self._lock:
            if charge := self._charges.get(instance_id):
                self._charges[instance_id] = replace(charge, pid=pid)

    def discharge(self, instance_id: str) -> bool:
        """Give the charge back; False when there was none."""
        with self._lock:
            return self._charges.pop(instance_id, None) is not None

    def get(self, reservation_id: str) -> Reservation:
        with self._lock:
            reservation = self._reservations.get(reservation_id)
        if reservation is None:
            raise NotFound(f"there is no reservation {reservation_id}")
        return reservation

    def release(self, reservation_id: str) -> None:
        """Give the reservation back.

        Raises:
            NotFound: there is none of that id.
        """
        with self._lock:
            if self._reservations.pop(reservation_id, None) is None:
                raise NotFound(f"there is no reservation {reservation_id}")

    def expire(self, reservation: Reservation) -> bool:
        """Drop one whose time is up; False when somebody else did."""
        with self._lock:
            return self._reservations.pop(reservation.id, None) is not None

    def _entries(self) -> list[Entry]:
        return [*self._reservations.values(), *self._charges.values()]
