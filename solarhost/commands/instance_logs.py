"""Log lines of one instance: read at once, or followed for as long as one likes."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import click
import websocket

from solarhost.commands.failures import NoSuchThing
from solarhost.commands.moments import Since
from solarhost.commands.names import find_instance
from solarhost.commands.output import plain, print_json_line
from solarhost.commands.remote import CONNECT_S, Remote, path

SILENCE_S = 60.0  # the agent pings more often than that
RECONNECT_S = (1.0, 10.0)  # the first pause, and the longest
GONE = 1000  # close code: there is nothing more to come


@dataclass(frozen=True, slots=True)
class Lines:
    """Entries `{seq, timestamp, line}` or `{dropped, next_seq}`, of which those after a time are shown."""

    entries: Iterator[Mapping[str, Any]]
    after: datetime | None

    def print(self, *, as_json: bool, timestamps: bool) -> None:
        for entry in self.entries:
            if (
                self.after
                and "timestamp" in entry
                and datetime.fromisoformat(entry["timestamp"]) < self.after
            ):
                continue
            if as_json:
                print_json_line(entry)
            elif "dropped" in entry:
                click.echo(f"({entry['dropped']} lines came too fast and are only in the log file)", err=True)
            else:
                click.echo(
                    f"{entry['timestamp']} {plain(entry['line'])}" if timestamps else plain(entry["line"])
                )
            sys.stdout.flush()


def read(remote: Remote, name: str, since: Since | None, tail: int | None) -> Lines:
    """What there is now, also of an instance that was removed, by its whole id."""
    try:
        instance_id = find_instance(remote, name)["id"]
    except NoSuchThing as error:
        instance_id = name
        try:
            entries = remote.get(path("instances", name, "logs"), _query(since, tail))
        except NoSuchThing:
            raise error from None
    else:
        entries = remote.get(path("instances", instance_id, "logs"), _query(since, tail))
    return Lines(iter(entries), _time(since))


def follow(remote: Remote, name: str, since: Since | None, tail: int | None) -> Lines:
    """Each line as it is printed, until the instance is removed; a lost connection is made again."""
    instance_id = find_instance(remote, name)["id"]
    return Lines(_followed(remote, instance_id, _query(since, tail)), _time(since))


def _followed(remote: Remote, instance_id: str, query: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    pause_s, connected = RECONNECT_S[0], False
    while True:
        try:
            for entry in _stream(remote, instance_id, query):
                pause_s, connected = RECONNECT_S[0], True
                if "error" in entry:
                    raise NoSuchThing(f"the instance {instance_id} is not there any more")
                query = {"since": entry["seq"] if "seq" in entry else entry["next_seq"] - 1}
                yield entry
        except websocket.WebSocketBadStatusException as error:
            if error.status_code == 401:
                raise remote.refused() from error
            why = f"the agent answers HTTP {error.status_code}"
        except (OSError, websocket.WebSocketException) as error:
            if not connected and not isinstance(error, websocket.WebSocketConnectionClosedException):
                raise remote.unreachable(error) from error
            why = str(error) or type(error).__name__
        else:
            return
        click.echo(f"({why}; connecting again)", err=True)
        connected = True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, RECONNECT_S[1])


def _stream(remote: Remote, instance_id: str, query: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    """The entries of one connection; ends when the agent says that there is nothing more to come."""
    url = f"{remote.stream_url}{path('instances', instance_id, 'logs')}?{urlencode(query)}"
    stream = websocket.create_connection(
        url, header={"X-API-Key": remote.key}, timeout=CONNECT_S, suppress_origin=True
    )
    try:
        stream.settimeout(SILENCE_S)
        while True:
            opcode, data = stream.recv_data()
            if opcode == websocket.ABNF.OPCODE_TEXT:
                yield json.loads(data)
            elif opcode == websocket.ABNF.OPCODE_CLOSE:
                if int.from_bytes(data[:2], "big") == GONE:
                    return
                raise websocket.WebSocketConnectionClosedException("the agent is stopping")
    finally:
        stream.close(timeout=1)


def _query(since: Since | None, tail: int | None) -> dict[str, int]:
    query = {"since": since} if isinstance(since, int) else {}
    return query if tail is None else {**query, "tail": tail}


def _time(since: Since | None) -> datetime | None:
    return since if isinstance(since, datetime) else None
