"""A solar-control for tests: a real python-socketio server, run as a program of its own.

It knows a host by its key or holds it pending, acknowledges, rejects, disconnects and sends commands, as
its standard input tells it (one JSON object a line: `{"do": ..., ...}`). All that happens is appended to
a file, one JSON object a line, each written before the event is acknowledged, so that it survives a kill.
"""

import argparse
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import socketio
from jsonschema import Draft202012Validator
from socketio.exceptions import ConnectionRefusedError as Refused
from werkzeug.serving import make_server

from tests.control_schemas import SCHEMAS

HOSTS = "/hosts"
VALIDATORS = {event: Draft202012Validator(schema) for event, schema in SCHEMAS.items()}


class Recorder:
    """Appends JSON lines with one write each."""

    def __init__(self, path: Path):
        self._lock = Lock()
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "pid": os.getpid(), "at": time.time(), **fields})
        with self._lock:
            self._file.write(line.encode() + b"\n")


class Control:
    """What solar-control keeps about its hosts."""

    def __init__(self, recorder: Recorder, known_keys: set[str], log_delay_s: float, deaf_to: str):
        self.sio = socketio.Server(
            async_mode="threading",
            async_handlers=False,  # so that the record has the order of arrival
            cors_allowed_origins=["https://elsewhere.example"],  # a browser's Origin would be refused
        )
        self._recorder = recorder
        self._known_keys = known_keys
        self._log_delay_s = log_delay_s
        self._refused_keys: set[str] = set()
        self._sessions: dict[str, dict[str, Any]] = {}
        self.sio.on("connect", self._on_connect, namespace=HOSTS)
        self.sio.on("disconnect", self._on_disconnect, namespace=HOSTS)
        if deaf_to:  # nothing is acknowledged that has no handler
            for event in set(SCHEMAS) - {deaf_to}:
                self.sio.on(event, partial(self._on_event, event), namespace=HOSTS)
        else:
            self.sio.on("*", self._on_event, namespace=HOSTS)

    def _on_connect(self, sid: str, environ: dict[str, Any], auth: dict[str, Any]) -> None:
        self._recorder.write("connect", sid=sid, auth=auth, origin=environ.get("HTTP_ORIGIN"))
        key = auth["api_key"]
        if key in self._refused_keys:
            raise Refused("unknown api key")
        pending_id = None if key in self._known_keys else str(uuid.uuid4())
        self._sessions[sid] = {**auth, "pending_id": pending_id}
        if pending_id is None:
            self._acknowledge(sid)
        else:
            self._emit("pending", {"pending_id": pending_id, "message": "wait", "timestamp": "now"}, sid)

    def _on_disconnect(self, sid: str, reason: str) -> None:
        self._sessions.pop(sid, None)
        self._recorder.write("disconnect", sid=sid, reason=reason)

    def _on_event(self, event: str, sid: str, data: Any) -> None:
        validator = VALIDATORS.get(event)
        errors = (
            ["unknown event"]
            if validator is None
            else [f"{error.json_path}: {error.message}" for error in validator.iter_errors(data)]
        )
        pending = self._sessions.get(sid, {"pending_id": "?"})["pending_id"] is not None
        if event == "log_batch" and self._log_delay_s:
            lines = len(data["entries"])
            self._recorder.write("event", sid=sid, event=event, lines=lines, errors=errors, pending=pending)
            time.sleep(self._log_delay_s)
            return
        self._recorder.write("event", sid=sid, event=event, data=data, errors=errors, pending=pending)

    def _acknowledge(self, sid: str) -> None:
        session = self._sessions[sid]
        session["pending_id"] = None
        host_id = f"host-{session['api_key'][-4:]}"
        ack = {"host_id": host_id, "host_name": session["host_name"], "timestamp": "now"}
        self._emit("registration_ack", ack, sid)

    def _emit(self, event: str, data: dict[str, Any], sid: str) -> None:
        self.sio.emit(event, data, to=sid, namespace=HOSTS)

    # Orders from standard input

    def reset(self, known_keys: list[str]) -> None:
        """As if it had just started."""
        self._known_keys = set(known_keys)
        self._refused_keys.clear()

    def approve(self) -> None:
        for sid, session in list(self._sessions.items()):
            if session["pending_id"] is not None:
                self._known_keys.add(session["api_key"])
                self._acknowledge(sid)

    def acknowledge(self) -> None:
        for sid in list(self._sessions):
            self._acknowledge(sid)

    def reject(self, reason: str) -> None:
        for sid in list(self._sessions):
            self._emit("rejected", {"reason": reason}, sid)
            self.sio.disconnect(sid, namespace=HOSTS)

    def disconnect(self) -> None:
        for sid in list(self._sessions):
            self.sio.disconnect(sid, namespace=HOSTS)

    def refuse(self, key: str) -> None:
        self._refused_keys.add(key)

    def welcome(self, key: str) -> None:
        self._refused_keys.discard(key)

    def sessions(self) -> None:
        self._recorder.write("sessions", hosts=[s["host_name"] for s in self._sessions.values()])

    def command(self, **command: Any) -> None:
        """Send it to the first host and record the acknowledgement."""
        sid = next(iter(self._sessions))

        def acknowledged(answer: Any = None) -> None:
            self._recorder.write("answer", answer=answer)

        self.sio.emit("command", command, to=sid, namespace=HOSTS, callback=acknowledged)


def obey(control: Control, recorder: Recorder) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        do: Callable[..., None] = getattr(control, order.pop("do"))
        do(**order)
        recorder.write("obeyed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--known-key", action="append", default=[])
    parser.add_argument("--log-delay-s", type=float, default=0.0)
    parser.add_argument("--deaf-to", default="")
    options = parser.parse_args()
    recorder = Recorder(options.record)
    control = Control(recorder, set(options.known_key), options.log_delay_s, options.deaf_to)
    app = socketio.WSGIApp(control.sio)
    server = make_server("127.0.0.1", options.port, app, threaded=True)
    recorder.write("listening")
    Thread(target=obey, args=(control, recorder), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
