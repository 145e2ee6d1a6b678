"""Telling systemd how the agent is doing (sd_notify(3)), without a library."""

import os
import socket
from contextlib import suppress


class Notifier:
    """Sends states to the service manager, and nothing when there is none. Safe from any thread."""

    def __init__(self, address: str, watchdog_s: float | None):
        """`watchdog_s`: how long the manager waits for a sign of life; None when it does not watch."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls) -> "Notifier":
        """Takes the variables out of the environment: they are not meant for model servers."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        interval_us = os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", None)
        watches = interval_us.isdigit() and int(interval_us) > 0
        return cls(address, int(interval_us) / 1e6 if watches else None)

    def ready(self) -> None:
        self._send("READY=1\nSTATUS=Serving")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Stopping")

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto(state.encode(), self._address)
