"""Downloading images: credentials and progress."""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from solarhost import strictjson
from solarhost.containers.errors import EngineRefused
from solarhost.containers.longcall import LongCall

LINE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """For one registry, such as `harbor.example.com`."""

    registry: str
    username: str
    password: str = field(repr=False)


def auth_header(credentials: Credentials) -> str:
    fields = {
        "username": credentials.username,
        "password": credentials.password,
        "serveraddress": credentials.registry,
    }
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode("ascii")


def pull_progress(call: LongCall, doing: str) -> Iterator[str]:
    """The engine's progress, one sentence a second at most, until the image is there.

    Raises:
        EngineRefused: no such image, no such registry, not allowed, or the download failed.
        EngineAway: the engine went before it answered.
        CallCut: the call was cut.
    """
    layers: dict[str, tuple[int, int]] = {}
    told_s = 0.0
    call.await_answer(None)  # the engine answers once the registry did, which may take its time
    status = ""
    for event in _events(call, doing):
        if "error" in event:
            raise EngineRefused(doing, str(event["error"]))
        status = str(event.get("status", ""))
        match event:
            case {"id": str(layer), "progressDetail": {"current": int(done), "total": int(total)}}:
                layers[layer] = (done, total)
        if layers and time.monotonic() - told_s >= 1.0:
            told_s = time.monotonic()
            done, total = (sum(numbers) for numbers in zip(*layers.values(), strict=True))
            yield f"{status.lower()}: {done / 2**20:.1f} of {total / 2**20:.1f} MiB"
    yield status


def _events(call: LongCall, doing: str) -> Iterator[dict[str, Any]]:
    pending = b""
    while data := call.read():
        if len(pending) > LINE_MAX_BYTES:
            raise EngineRefused(doing, "its progress can't be read: a line does not end")
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line.strip():
                try:
                    event = strictjson.parse(line)
                except ValueError as error:
                    raise EngineRefused(doing, f"its progress can't be read: {error}") from error
                if isinstance(event, dict):
                    yield event
