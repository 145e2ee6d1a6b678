"""Where the link stands, for everyone who asks."""

import time
from datetime import timedelta
from enum import StrEnum
from threading import Lock
from typing import Any

from solarhost.times import iso, now


class LinkState(StrEnum):
    """Life of the link; only the control thread moves it.

        connecting --> registered            the key is known
        connecting --> pending --> registered   an administrator approves the host
        connecting, pending --> rejected     until `reconnect`
        connecting --> unauthorized          refused in the handshake; tried again with backoff
        each of them --> connecting          the connection is lost, or made anew

    DISABLED (no control is configured) is never left.
    """

    DISABLED = "disabled"
    CONNECTING = "connecting"
    PENDING = "pending"
    REGISTERED = "registered"
    REJECTED = "rejected"
    UNAUTHORIZED = "unauthorized"


CONNECTED = frozenset({LinkState.PENDING, LinkState.REGISTERED})


class LinkRecord:
    """The state and what belongs to it. Safe from any thread."""

    def __init__(self, address: str | None):
        self._address = address
        self._lock = Lock()  # guards all below
        self._state = LinkState.DISABLED if address is None else LinkState.CONNECTING
        self._since = now()
        self._host_id: str | None = None
        self._heard: float | None = None  # time.monotonic()
        self._connections = 0
        self._error: str | None = None

    @property
    def state(self) -> LinkState:
        with self._lock:
            return self._state

    @property
    def host_id(self) -> str | None:
        with self._lock:
            return self._host_id

    def move(self, state: LinkState, *, host_id: str | None = None, error: str | None = None) -> bool:
        """Enter `state`; returns whether that, or the error, is news."""
        with self._lock:
            news = state is not self._state or error != self._error
            if state is not self._state:
                self._state = state
                self._since = now()
            self._host_id = host_id
            self._error = error
        return news

    def connected(self) -> None:
        """One more connection was made."""
        with self._lock:
            self._connections += 1

    def heard(self, moment: float | None) -> None:
        """Control gave a sign of life at `moment` (`time.monotonic()`), or none on this connection."""
        if moment is not None:
            with self._lock:
                self._heard = moment

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            age_s = None if self._heard is None else time.monotonic() - self._heard
            return {
                "state": str(self._state),
                "since": iso(self._since),
                "url": self._address,
                "host_id": self._host_id,
                "last_contact": None if age_s is None else iso(now() - timedelta(seconds=age_s)),
                "connections": self._connections,
                "error": self._error,
            }
