"""A WebSocket stream of the agent's, read for as long as it lasts."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import click
import websocket

from solarhost.commands.failures import NoSuchThing
from solarhost.commands.remote import CONNECT_S, Remote

SILENCE_S = 60.0  # the agent pings more often than that
RECONNECT_S = (1.0, 10.0)  # the first pause, and the longest
GONE = 1000  # close code: there is nothing more to come

Entry = Mapping[str, Any]


def followed(remote: Remote, path: str, query: Mapping[str, int], gone: str) -> Iterator[Entry]:
    """Entries `{seq, …}` or `{dropped, next_seq}` until no more will come; a lost connection is made again.

    Raises:
        NoSuchThing: with `gone`, when what is followed is not there (any more).
    """
    pause_s, connected = RECONNECT_S[0], False
    while True:
        try:
            for entry in _stream(remote, path, query):
                pause_s, connected = RECONNECT_S[0], True
                if "error" in entry:
                    raise NoSuchThing(gone)
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


def _stream(remote: Remote, path: str, query: Mapping[str, int]) -> Iterator[Entry]:
    """The entries of one connection; ends when the agent says that there is nothing more to come."""
    stream = websocket.create_connection(
        f"{remote.stream_url}{path}?{urlencode(query)}",
        header={"X-API-Key": remote.key},
        timeout=CONNECT_S,
        suppress_origin=True,
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
                raise websocket.WebSocketConnectionClosedException(data[2:].decode("utf-8", "replace"))
    finally:
        stream.close(timeout=1)
