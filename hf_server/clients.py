"""Noticing that a client went away, without waiting for a write to fail."""

import socket


class Client:
    """The connection behind one request. `is_gone` is cheap enough to ask before each token."""

    def __init__(self, connection: socket.socket | None):
        self._connection = connection
        self._given_up = False

    def give_up(self) -> None:
        """The answer can't be delivered any more."""
        self._given_up = True

    def is_gone(self) -> bool:
        """True once the client closed its side, or the answer could not be written."""
        if self._given_up or self._connection is None:
            return self._given_up
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False  # open, and silent while it waits
        except OSError:
            return True
