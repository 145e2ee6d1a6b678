"""Answers that the worker gives by itself, before or in place of the application's."""

import json
from contextlib import suppress
from http import HTTPStatus

from gunicorn.http import errors

from solarhost.server.connection import Connection

STATUS_OF_ERROR = (
    (errors.LimitRequestLine, 414),
    (errors.LimitRequestHeaders, 431),
    (errors.ExpectationFailed, 417),
    (errors.UnsupportedTransferCoding, 501),
    ((errors.ParseException, errors.NoMoreData), 400),
)


def status_of(error: Exception) -> int:
    """The status for what gunicorn's parser raised."""
    return next(status for kinds, status in STATUS_OF_ERROR if isinstance(error, kinds))


def refuse(connection: Connection, status: int, detail: str) -> None:
    """Write an error as the API writes them; the connection is to be closed after it."""
    body = json.dumps({"detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with suppress(OSError):  # the client is gone
        connection.sock.begin()
        connection.sock.sendall(head.encode() + body)
        connection.sock.flush()
