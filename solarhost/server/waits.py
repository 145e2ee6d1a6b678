"""How long a connection may wait, and which one goes first when there are too many."""

from solarhost.server.connection import Connection, Phase

# From the moment that the wait began.
FIRST_REQUEST_S = 30.0  # a new connection, for the first byte
KEEP_ALIVE_S = 75.0  # an answered one, for the first byte of its next request
HEAD_S = 15.0  # from the first byte of a request to the end of its head
BODY_S = 60.0  # from there to the end of its body
WRITE_S = 60.0  # for the client to take the rest of an answer
LINGER_S = 2.0  # for the client to close after us

FRESH_S = 0.25  # in which a new client's request is on its way

STALLED, IDLE, FRESH = range(3)


def patience_s(connection: Connection) -> float:
    """How long this connection may go on waiting for what it waits for."""
    match connection.phase:
        case Phase.WRITING:
            return WRITE_S
        case Phase.LINGERING:
            return LINGER_S
    if connection.intake.in_body:
        return BODY_S
    if len(connection.intake):
        return HEAD_S
    return KEEP_ALIVE_S if connection.answered else FIRST_REQUEST_S


def worth(connection: Connection, now: float) -> tuple[int, float]:
    """An order of connections: those that stall, idle ones of clients that behaved, those that just came."""
    if connection.phase is Phase.READING and not len(connection.intake):
        if connection.answered:
            return IDLE, connection.since
        if now - connection.since < FRESH_S:
            return FRESH, connection.since
    return STALLED, connection.since
