"""Ports for instances."""

import errno
import socket
from itertools import chain
from threading import Lock
from typing import Any

from solarhost.errors import SolarHostError
from solarhost.shortages import why


class PortTaken(SolarHostError):
    """A port that the config asks for is held by somebody."""

    def __init__(self, host: str, port: int, why: str):
        super().__init__(f"port {port} on {host} is taken: {why}")
        self.port = port


class NoSuchAddress(SolarHostError):
    """No server can listen on this address, whatever the port."""

    def __init__(self, host: str, why: str):
        super().__init__(f"no server can listen on {host}: {why}; set host to an address of this machine")


class Ports:
    """Hands out each port once. Safe from any thread."""

    def __init__(self, first: int):
        self._first = first
        self._lock = Lock()  # guards _held
        self._held: dict[int, str] = {}

    def take(self, instance_id: str, host: str, wanted: int | None, former: int | None = None) -> int:
        """The wanted port, or the lowest free one that can be bound on `host`.

        Args:
            former: preferred to the lowest one, if it is free.

        Raises:
            PortTaken: the wanted one is held by another instance or program, or none is free.
            NoSuchAddress: `host` is no address of this machine.
        """
        where = _resolve(host)  # outside the lock: a name server may take its time
        with self._lock:
            if wanted is not None:
                holder = self._held.get(wanted)
                if holder not in (None, instance_id):
                    raise PortTaken(host, wanted, f"instance {holder} has it")
                obstacle = _why_not_bindable(where, wanted)
                if obstacle:
                    raise PortTaken(host, wanted, obstacle)
                port = wanted
            else:
                candidates = chain(
                    [former] if former is not None and former >= self._first else [],
                    range(self._first, 65536),
                )
                free = (
                    port
                    for port in candidates
                    if port not in self._held and not _why_not_bindable(where, port)
                )
                port = next(free, 0)
                if not port:
                    raise PortTaken(host, self._first, f"no port from {self._first} to 65535 is free")
            self._held[port] = instance_id
            return port

    def keep(self, instance_id: str, port: int) -> None:
        """Note the port of a child that was found alive."""
        with self._lock:
            self._held[port] = instance_id

    def give_back(self, instance_id: str) -> None:
        with self._lock:
            self._held = {port: holder for port, holder in self._held.items() if holder != instance_id}


def _resolve(host: str) -> tuple[Any, ...]:
    """The socket address of `host`, once.

    Raises:
        NoSuchAddress: the name or number means nothing here.
        OSError: no descriptor is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return tuple(socket.getaddrinfo(host, 0, family, socket.SOCK_STREAM)[0][4])
    except OSError as error:
        socket.socket(family).close()  # says so where none is free; the resolver then says anything
        raise NoSuchAddress(host, why(error)) from error
    except UnicodeError as error:  # a label that no name can have
        raise NoSuchAddress(host, str(error)) from error


def _why_not_bindable(where: tuple[Any, ...], port: int) -> str | None:
    """Why a server could not listen there now, None if it could.

    Raises:
        NoSuchAddress: nor could it on any other port.
    """
    host, _, *scope = where
    with socket.socket(socket.AF_INET6 if scope else socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port, *scope))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return why(error)
            raise NoSuchAddress(host, why(error)) from error
    return None


def reachable_address(bind_host: str) -> str:
    """Where this machine reaches a server that is bound to `bind_host`."""
    if bind_host in ("", "0.0.0.0", "*"):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if bind_host in ("::", "[::]"):
        return "::1"
    return bind_host


def base_url(bind_host: str, port: int) -> str:
    address = reachable_address(bind_host)
    if ":" in address:
        address = f"[{address}]"
    return f"http://{address}:{port}"
