"""The agent's server around a small application, for tests of the server alone.

Everything outside the application is the real thing: gunicorn, the worker, the signals, the streams.
Settings come from the environment. `DETACHED` and `STOPPED` tell through a file how it was closed.
"""

import itertools
import logging
import os
import sys
import threading
import time
from pathlib import Path

from flask import Flask, Response, jsonify, request

from solarhost import streams
from solarhost.errors import InvalidRequest, NotFound, SolarHostError, StoreError
from solarhost.logs.channel import Channel, Counters, LogCursor
from solarhost.places import Places
from solarhost.server.serve import serve, settings_or_exit
from solarhost.settings import Settings


class Logs:
    """Keeps `LogBook.subscribe`'s contract for the one instance `known`; `unread` can't be read."""

    def __init__(self) -> None:
        self.channel = Channel(0, 1000, Counters())

    def subscribe(self, instance_id: str, *, since: int | None = None, tail: int | None = None) -> LogCursor:
        if instance_id == "unread":
            raise StoreError("/" + "é" * 100)
        if instance_id != "known":
            raise NotFound("no such instance")
        return LogCursor(self.channel, since, tail)


class States:
    """Keeps the contract of `Instances` for the one instance `known`, and is its cursor, too."""

    closed = False

    def watch_state(self, instance_id: str) -> "States":
        if instance_id != "known":
            raise NotFound("no such instance")
        watcher = States()
        watcher.seq = itertools.count()
        return watcher

    def next(self, timeout_s: float) -> list[dict[str, object]] | None:
        seq = next(self.seq)
        if seq == 0:
            return [{"type": "instance_state", "data": {"busy": False}}]
        time.sleep(min(timeout_s, 0.05))
        return [{"seq": seq, "timestamp": "t", "type": "instance_state", "data": {"busy": True}}]


class Service:
    """Does nothing, and writes down how it was told to."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.logs = Logs()
        self.instances = States()
        self.places = Places()
        self.closing = threading.Event()
        self.lock = threading.Lock()  # every answer about health takes it
        self._notes = Path(os.environ["NOTES"])

    def start(self) -> None:
        if "FAIL_START" in os.environ:
            raise SolarHostError("the service can't start today")
        self.note(f"started {os.getpid()}")

    def close(self, deadline: float, *, detach: bool = False) -> None:
        self.closing.set()
        if "CLOSE_S" in os.environ:
            time.sleep(float(os.environ["CLOSE_S"]))
        self.note(f"{'detached' if detach else 'stopped'} {os.getpid()}")

    def note(self, line: str) -> None:
        with self._notes.open("a") as file:
            file.write(line + "\n")


def build(settings: Settings) -> Flask:
    app = Flask("served")
    service = Service(settings)
    app.extensions["solarhost"] = service
    app.errorhandler(InvalidRequest)(lambda error: ({"detail": str(error), "errors": error.errors}, 422))

    @app.get("/health")
    def health() -> Response:
        with service.lock:
            pass
        threads = sorted(thread.name for thread in threading.enumerate())
        open_streams = app.extensions["solarhost.streams"].open
        return jsonify(status="healthy", pid=os.getpid(), threads=threads, streams=open_streams)

    @app.post("/echo")
    def echo() -> Response:
        return Response(request.get_data(), headers={"X-Length": str(len(request.get_data()))})

    @app.get("/big/<int:size>")
    def big(size: int) -> Response:
        return Response(b"x" * size)

    @app.get("/wait")
    def wait() -> Response:
        """As a start does: until it is done or the agent stops."""
        service.note("waiting")
        service.closing.wait(60)
        return jsonify(stopped=True)

    @app.post("/hang")
    def hang() -> Response:
        """As a part that never lets go of its lock."""
        service.lock.acquire()
        return jsonify(hangs=True)

    @app.get("/fail")
    def fail() -> Response:
        logging.getLogger("served").warning("about to fail")
        raise RuntimeError("on purpose")

    @app.get("/fail-late")
    def fail_late() -> Response:
        def body():
            yield b"first"
            raise RuntimeError("on purpose")

        return Response(body(), headers={"Content-Length": "10"})

    @app.post("/lines")
    def lines() -> Response:
        texts = request.get_json()
        service.logs.channel.append(texts, "2026-01-01T00:00:00+00:00", sum(map(len, texts)))
        return jsonify(taken=len(texts))

    @app.post("/create")
    def create() -> Response:
        service.logs = Logs()
        return jsonify(created=True)

    @app.post("/delete")
    def delete() -> Response:
        service.logs.channel.close()
        return jsonify(deleted=True)

    streams.register(app, service)
    return app


if __name__ == "__main__":
    sys.exit(serve(settings_or_exit(), build))
