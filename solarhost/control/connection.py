"""One Socket.IO connection to solar-control, from its handshake to the end of its last thread.

python-socketio does the protocol; reconnecting is not left to it. A client object serves one connection
only, so nothing of an old connection can leak into a new one. What the library does not do by itself is
done here: after a connection that failed or was lost, its socket is closed and its threads are joined.
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import socketio
from engineio.exceptions import EngineIOError
from websocket import WebSocketBadStatusException, WebSocketException

from solarhost.control.livesocket import LiveSocket
from solarhost.errors import SolarHostError, Unavailable
from solarhost.threads import join_by

logger = logging.getLogger(__name__)

NAMESPACE = "/hosts"
STEP_S = 5.0  # for each of: TCP, TLS, the upgrade, the Engine.IO greeting
POLITE_S = 0.5  # for a last farewell to be written
JOIN_S = 5.0

# The library's log shows what it sends, and the handshake holds the key, so only its errors are let through.
_library_logger = logging.getLogger(f"{__name__}.library")
_library_logger.setLevel(logging.ERROR)

Handler = Callable[..., Any]


class LinkDown(Unavailable):
    """The connection could not be made, or was lost; the text says why."""


class Unauthorized(LinkDown):
    """Control is there and does not let this host in."""


class Rejected(LinkDown):
    """An administrator of control has turned this host down."""


class Unsendable(SolarHostError):
    """A payload can't be written as JSON, now or ever."""


class Connection:
    """Belongs to one thread; `cut` may be called from any other.

    Args:
        address: `http(s)://host[:port]`.
        auth: the `auth` of the handshake.
        verify: check the certificate, against `ca_file` if given, else against the system's authorities.
        handlers: by event name; called in threads of the library, `connect_error` and `disconnect` too.
        on_heard: called after `probe` at the first sign of life.
    """

    def __init__(
        self,
        address: str,
        auth: Mapping[str, str],
        handlers: Mapping[str, Handler],
        on_heard: Callable[[], None],
        *,
        verify: bool = True,
        ca_file: str = "",
    ):
        self._address = address
        self._auth = dict(auth)
        self._on_heard = on_heard
        self._socket: LiveSocket | None = None
        self._probed_at: float | None = None
        self._opened = threading.Event()
        if not verify:
            tls: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
        else:
            tls = {"ca_certs": ca_file} if ca_file else {}
        self._client = socketio.Client(
            reconnection=False,
            handle_sigint=False,
            logger=_library_logger,
            engineio_logger=_library_logger,
            request_timeout=STEP_S,
            websocket_extra_options={
                "class_": self._make_socket,
                "sslopt": tls,
                "suppress_origin": True,  # a server behind a proxy may not know its own origin
                "http_no_proxy": ["*"],  # proxies in the environment are for downloads
            },
        )
        for event, handler in handlers.items():
            self._client.on(event, handler, namespace=NAMESPACE)
        self._spawn = self._client.eio.start_background_task
        self._client.eio.start_background_task = self._start_task

    def open(self) -> None:
        """Connect as far as Engine.IO goes; `joined` tells when the namespace is there too.

        Raises:
            LinkDown: with the reason. `end` is due nevertheless.
        """
        try:
            self._client.connect(
                self._address,
                auth=self._auth,
                transports=["websocket"],
                namespaces=[NAMESPACE],
                socketio_path="socket.io",
                wait=False,
            )
            self._opened.set()
        except socketio.exceptions.ConnectionError as error:
            raise _explained(error) from error
        except (ValueError, KeyError, TypeError) as error:  # how the library takes a strange greeting
            raise _no_socketio(error) from error

    @property
    def joined(self) -> bool:
        """Control has accepted the host to the namespace."""
        return NAMESPACE in self._client.namespaces

    @property
    def is_up(self) -> bool:
        """The transport is there, with a thread at each end of it."""
        writer = self._client.eio.write_loop_task  # set to None when it ends; dead after some errors
        return self._client.eio.state == "connected" and writer is not None and writer.is_alive()

    @property
    def is_idle(self) -> bool:
        """All that was emitted has been handed to the kernel."""
        return bool(self._client.eio.queue.unfinished_tasks == 0)

    @property
    def heard(self) -> float | None:
        """`time.monotonic()` of the last sign of life, if there was one."""
        return None if self._socket is None else self._socket.heard

    def emit(self, event: str, payload: Mapping[str, Any], on_ack: Callable[[], None] | None = None) -> None:
        """Hand one event to the writer; never waits for the network.

        Args:
            on_ack: called by the reader when control has acknowledged the event.

        Raises:
            Unsendable: it will never go out.
        """
        callback = None if on_ack is None else lambda *_: on_ack()
        try:
            self._client.emit(event, payload, namespace=NAMESPACE, callback=callback)
        except socketio.exceptions.BadNamespaceError:
            pass  # the connection ended a moment ago, as its owner is about to see
        except (TypeError, ValueError, RecursionError) as error:
            raise Unsendable(f"{event} can't be written as JSON: {error}") from error

    def ping(self) -> bool:
        """Ask for a sign of life; False when that is not possible right now."""
        return self._socket is not None and self.is_idle and self._socket.ping_now()

    def probe(self, *, answered: bool) -> bool:
        """Has the peer been heard since a ping that was sent for this question?

        The first call sends the ping, later ones look for the answer, and the call after a True asks anew.

        Args:
            answered: the peer has just acknowledged an event, so there is no need to ask.
        """
        if answered:
            self._probed_at = None
            return True
        if self._probed_at is None:
            now = time.monotonic()
            if self.ping():
                self._probed_at = now
            return False
        if (self.heard or 0.0) <= self._probed_at:
            return False
        self._probed_at = None
        return True

    def cut(self) -> None:
        """End the connection at once, even in the middle of its handshake."""
        if self._socket is not None:
            self._socket.cut()

    def end(self, *, politely: bool = False) -> None:
        """Close the socket and see the library's threads end.

        Args:
            politely: tell control first; for a peer that is alive.
        """
        eio = self._client.eio
        if politely and self.is_up:
            with suppress(socketio.exceptions.SocketIOError):
                eio.send(self._client.packet_class(socketio.packet.DISCONNECT, namespace=NAMESPACE).encode())
            give_up_at = time.monotonic() + POLITE_S
            while not self.is_idle and self.is_up and time.monotonic() < give_up_at:
                time.sleep(0.01)
        tasks = [task for task in (eio.read_loop_task, eio.write_loop_task) if task is not None]
        self.cut()
        eio.queue.put(None)  # after a close by control the writer would wait for as long as control said
        alive = join_by(tasks, time.monotonic() + JOIN_S)
        if alive:
            logger.error("control: threads of an ended connection are still there: %s", alive)
        if self._socket is not None:
            self._socket.shutdown()  # type: ignore[no-untyped-call]

    def _start_task(self, target: Callable[..., None], *args: Any) -> threading.Thread | None:
        """The library starts a thread for each message. Acknowledgements need none: they come by the
        hundred, and handled by the reader itself, all are when the reader has ended."""
        if target == self._client.eio.handlers["message"]:
            # It also overlooks a disconnect that comes in before its `connect` returns.
            self._opened.wait(STEP_S)
            if isinstance(args[0], str) and args[0].startswith(str(socketio.packet.ACK)):
                target(*args)
                return None
        task: threading.Thread = self._spawn(target, *args)
        return task

    def _make_socket(self, **options: Any) -> LiveSocket:
        self._socket = LiveSocket(self._after_frame, **options)
        return self._socket

    def _after_frame(self) -> None:
        if self._probed_at is not None:
            self._on_heard()


def _explained(error: BaseException) -> LinkDown:
    """The library's error in the words of what caused it."""
    cause = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    if isinstance(cause, WebSocketBadStatusException):
        kind = Unauthorized if cause.status_code in (401, 403) else LinkDown
        return kind(f"it answers HTTP {cause.status_code}")
    if isinstance(cause, OSError | WebSocketException | EngineIOError):
        return LinkDown(str(cause) or type(cause).__name__)
    return _no_socketio(cause)


def _no_socketio(error: BaseException) -> LinkDown:
    return LinkDown(f"what answers there is no Socket.IO server ({error!r})")
