"""Telling systemd how the agent is doing (sd_notify(3)), without a library."""

import os
import socket
import time
from contextlib import suppress


class Notifier:
    """Sends states to the service manager, and nothing when there is none. Safe from any thread."""

    def __init__(self, address: str, watchdog_s: float | None):
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._next_beat = 0.0

    @classmethod
    def from_environment(cls) -> "Notifier":
        """Takes the variables out of the environment: they are not meant for model servers."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        interval_us = os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", None)
        return cls(address, int(interval_us) / 1e6 if interval_us.isdigit() else None)

    def ready(self) -> None:
        self._send("READY=1\nSTATUS=Serving")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Stopping")

    def beat(self) -> None:
        """Say that the server still runs, three times in each interval the manager allows."""
        now = time.monotonic()
        if self._watchdog_s and now >= self._next_beat:
            self._next_beat = now + self._watchdog_s / 3
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto(state.encode(), self._address)
