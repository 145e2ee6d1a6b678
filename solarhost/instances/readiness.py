"""Waiting until a starting server answers."""

import http.client
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from solarhost.instances.ports import reachable_address
from solarhost.instances.process import Effort, effort, listens

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
PROGRESS_INTERVAL_S = 2.0
# Between probes passes this share of the time that the start has taken, so that readiness is seen at
# once where it comes soon, and waiting long costs little. A line in the log cuts the pause short.
PAUSE_SHARE, MIN_PAUSE_S, MAX_PAUSE_S = 0.02, 0.04, 0.5


class NotReady(Exception):
    """The wait ended without an answer; the text says what was seen."""


@dataclass(frozen=True, slots=True)
class Limits:
    idle_s: float  # without progress
    total_s: float


def probe(host: str, port: int, path: str) -> int | None:
    """Status of one GET, None when nothing answers in time."""
    connection = http.client.HTTPConnection(reachable_address(host), port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def wait_until_ready(
    host: str,
    port: int,
    path: str,
    *,
    limits: Limits,
    session: Callable[[], list[int]],
    members: Callable[[], list[int]],
    changed: Condition,
    ended: Callable[[], bool],
    hinted: Callable[[], bool],
) -> None:
    """Probe `path` until it answers 200 from one of `members`.

    Args:
        session: pids of the child and its session, whose effort counts as progress.
        members: all that the child started, wherever it went, a look at every process; one of them has
            to hold the port, if none of the session does.
        changed: notified when `ended` or `hinted` may have become true.
        ended: the child died, or a stop was asked for.
        hinted: its log announced readiness, so the next probe comes at once.

    Raises:
        NotReady: the time is over, or another program answers on the port.
    """
    began = last_progress = time.monotonic()
    last_look = began
    seen = Effort(0, 0)
    status: int | None = None
    hint_used = False
    while True:
        status = probe(host, port, path)
        if status == 200:
            if listens(session(), port) is not True and listens(members(), port) is False:
                with changed:  # ours may be about to fail for exactly that reason
                    if changed.wait_for(ended, 1.0):
                        return
                raise NotReady(f"port {port} is answered by another program, not by this server")
            return
        now = time.monotonic()
        if now - last_look >= min(PROGRESS_INTERVAL_S, limits.idle_s / 4):
            last_look = now
            latest = effort(session())
            if latest.beyond(seen):
                seen, last_progress = latest, now
        if now - last_progress > limits.idle_s or now - began > limits.total_s:
            answer = f"its last answer was {status}" if status else "it does not answer"
            raise NotReady(
                f"not ready after {now - began:.0f} s, {now - last_progress:.0f} s of them without progress: "
                f"{answer} on port {port}{path}; see its log, or raise INSTANCE_READY_TIMEOUT_S"
            )
        pause = min(max(MIN_PAUSE_S, PAUSE_SHARE * (now - began)), MAX_PAUSE_S)
        use_hint = not hint_used
        with changed:
            changed.wait_for(lambda use_hint=use_hint: ended() or (use_hint and hinted()), pause)  # type: ignore[misc]
            if ended():
                return
            hint_used = hint_used or hinted()
