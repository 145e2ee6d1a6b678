"""WebSocket streams: an instance's log lines and its runtime state, the log of a job's step.

A stream holds a request thread, so streams are counted and capped below the number of threads.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Protocol, TypeVar

from flask import Blueprint, Flask, Response, g, jsonify, make_response, request
from flask_sock import Sock
from simple_websocket import Server

from solarhost.api import auth
from solarhost.errors import InvalidRequest, NotFound, StoreError, Unavailable
from solarhost.jobs.logfile import LogPart
from solarhost.logs.frames import text_frame
from solarhost.places import Places
from solarhost.settings import Settings
from solarhost.shortages import why
from solarhost.threads import NoThread
from solarhost.websocket import StreamSocket, close_frame

NORMAL = 1000
GOING_AWAY = 1001
TRY_AGAIN = 1013
RETRY_AFTER_S = 5

# How soon a stream sees that it is to end. For lines a cursor wakes at once.
POLL_S = 0.5
# What comes within this time travels together: a thousand lines a second would otherwise wake every
# stream a thousand times a second.
GATHER_S = 0.01

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Cursor(Protocol[BatchT_co]):
    """One stream's place in what it follows."""

    @property
    def closed(self) -> bool:
        """True when no more will come after what `next` still gives."""

    def next(self, timeout_s: float) -> BatchT_co | None: ...


class Host(Protocol):
    """What is followed: see `LogBook.subscribe`, `Instances.watch_state` and `JobLogs.follow`."""

    settings: Settings

    @property
    def logs(self) -> Any: ...
    @property
    def instances(self) -> Any: ...
    @property
    def jobs(self) -> Any: ...
    @property
    def places(self) -> Places: ...


def register(app: Flask, host: Host) -> "Streams":
    """Add the endpoints to `app`, which has to authenticate and to answer errors; see `Streams.close`."""
    streams = Streams(host)
    blueprint = Blueprint("streams", __name__)
    blueprint.before_request(streams.admit)
    blueprint.teardown_request(streams.leave)
    sock = Sock()
    sock.route("/instances/<instance_id>/logs", bp=blueprint)(streams.logs)
    sock.route("/instances/<instance_id>/state", bp=blueprint)(streams.state)
    sock.route("/jobs/<job_id>/steps/<step_name>/logs", bp=blueprint)(streams.step_log)
    app.register_blueprint(blueprint)
    app.config["SOCK_SERVER_OPTIONS"] = {
        "subprotocols": KeyProtocols(),
        "thread_class": partial(InputThread, name="stream-input", daemon=True),
    }
    app.extensions["solarhost.streams"] = streams
    return streams


class Streams:
    """The endpoints, and the count of what is open. Safe from any thread."""

    def __init__(self, host: Host):
        self._host = host
        self._limit = host.settings.max_streams
        self._ping_interval_s = host.settings.ping_interval_s
        self._stopping = Event()
        self._lock = Lock()  # guards _open
        self._open = 0

    @property
    def open(self) -> int:
        """How many there are now."""
        return self._open

    def close(self) -> None:
        """End every stream with code 1001, within `POLL_S`; no more are let in."""
        self._stopping.set()

    def admit(self) -> Response | None:
        """Refuse the upgrade, or count the stream in and take its socket over."""
        if not _is_upgrade():
            return make_response(jsonify({"detail": "not a WebSocket upgrade as RFC 6455 has it"}), 400)
        _check_number("since", -1)
        _check_number("tail", 0)
        with self._lock:
            if self._open >= self._limit or self._stopping.is_set():
                full = {"detail": f"all {self._limit} streams (MAX_STREAMS) are taken"}
                return make_response(jsonify(full), 503, {"Retry-After": str(RETRY_AFTER_S)})
            self._host.places.enter()
            try:
                g.stream = StreamSocket(request.environ["gunicorn.socket"].raw, self._ping_interval_s)
            except OSError as error:
                self._host.places.leave()
                raise Unavailable(f"no stream can be opened: {why(error)}") from error
            self._open += 1
        request.environ["gunicorn.socket"] = g.stream
        # Frames are encoded once for all clients, so none is compressed for one of them.
        request.environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)
        return None

    def leave(self, _error: BaseException | None) -> None:
        """The request of a stream has ended."""
        if "stream" in g:
            g.stream.release()
            self._host.places.leave()
            with self._lock:
                self._open -= 1

    def logs(self, ws: Server, instance_id: str) -> None:
        """The lines in memory, then each new one."""
        since, tail = request.args.get("since", type=int), request.args.get("tail", type=int)
        with self._talking(ws) as stream:
            cursor = self._host.logs.subscribe(instance_id, since=since, tail=tail)
            try:
                self._pump(stream, cursor, lambda batch: batch.frames, "the instance was deleted")
            finally:
                cursor.close()

    def step_log(self, ws: Server, job_id: str, step_name: str) -> None:
        """All lines of its file, then each new one, until the step is over."""
        since, tail = request.args.get("since", 0, type=int), request.args.get("tail", type=int)
        with self._talking(ws, "Step not found") as stream:
            cursor = self._host.jobs.logs.follow(job_id, step_name, since=since, tail=tail)
            try:
                self._pump(stream, cursor, _numbered_frames, "the step is over")
            finally:
                cursor.close()

    def state(self, ws: Server, instance_id: str) -> None:
        """The present state, then each change."""
        with self._talking(ws) as stream:
            states = self._host.instances.watch_state(instance_id)
            self._pump(stream, states, _message_frames, "the instance was deleted")

    @contextmanager
    def _talking(self, ws: Server, not_found: str = "Instance not found") -> Iterator[StreamSocket]:
        """The stream's socket; whatever ends the block, no thread is left behind."""
        stream: StreamSocket = g.stream
        try:
            yield stream
        except NotFound:
            with suppress(OSError):
                stream.send(_message_frames([{"error": not_found}]) + close_frame(NORMAL, ""))
        except StoreError as error:  # what it asks for can't be read now
            with suppress(OSError):
                stream.send(close_frame(TRY_AGAIN, str(error)))
        except OSError:
            pass  # the peer is gone
        finally:
            ws.connected = False  # all is said; flask_sock need not close it again
            stream.end()
            ws.thread.join()

    def _pump(
        self, stream: StreamSocket, cursor: Cursor[BatchT], frames_of: Callable[[BatchT], bytes], end: str
    ) -> None:
        """Send what the cursor brings until the peer or the server goes, or what is followed `end`s."""
        while not stream.ended:
            batch = cursor.next(POLL_S)
            if self._stopping.is_set():
                stream.send(close_frame(GOING_AWAY, "the agent is stopping"))
                return
            if batch is not None:
                stream.send(frames_of(batch))
                self._stopping.wait(GATHER_S)
            elif cursor.closed:
                stream.send(close_frame(NORMAL, end))
                return


class InputThread(Thread):
    """The thread of simple_websocket that reads what a peer sends."""

    def start(self) -> None:
        """Raises NoThread; the peer, which was told that it may go on, sees no frame and gives up."""
        try:
            super().start()
        except RuntimeError as error:
            raise NoThread(self.name) from error


class KeyProtocols:
    """The "list" of subprotocols that the server speaks: browsers want the one with the key echoed."""

    def __contains__(self, name: str) -> bool:
        return name.startswith(auth.SUBPROTOCOL)


def _message_frames(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(text_frame(json.dumps(message)) for message in messages)


def _numbered_frames(part: LogPart) -> bytes:
    return _message_frames(
        [{"seq": seq, "line": line} for seq, line in enumerate(part.lines, part.first_seq)]
    )


def _is_upgrade() -> bool:
    """The handshake's rules (RFC 6455, section 4.2.1) that simple_websocket would fail on."""
    headers = request.headers
    try:
        nonce = base64.b64decode(headers.get("Sec-WebSocket-Key", ""), validate=True)
    except ValueError:  # of bytes that are no ASCII, too
        return False
    upgrades = "upgrade" in headers.get("Connection", "").lower()
    return upgrades and len(nonce) == 16 and headers.get("Sec-WebSocket-Version") == "13"


def _check_number(name: str, lowest: int) -> None:
    text = request.args.get(name)
    if text is None:
        return
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and int(text) >= lowest):
        problem = f"{name}={text[:40]!r} is not a whole number from {lowest} on"
        raise InvalidRequest(problem, {name: [problem]})
