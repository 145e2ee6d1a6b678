"""The link to solar-control: connects, comes back, and says how it stands.

One thread, `control`, makes all decisions. Whatever concerns it (an event from control, a request to
reconnect, the end of the program) comes to it as news through one inbox, which is also what it waits on.
"""

import itertools
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

from solarhost.control.backoff import Backoff
from solarhost.control.commands import Commands, Dispatch
from solarhost.control.connection import Connection, LinkDown, Rejected, Unauthorized
from solarhost.control.drops import DropReport
from solarhost.control.news import Inbox
from solarhost.control.outbox import Outbox
from solarhost.control.payloads import Json
from solarhost.control.session import EVENTS, Reports, Session, rejection
from solarhost.control.state import CONNECTED, LinkRecord, LinkState
from solarhost.errors import Unavailable
from solarhost.events import Delivered, Event, JobEvent
from solarhost.net import control_address
from solarhost.settings import Settings

logger = logging.getLogger(__name__)

TICK_S = 0.1  # how often the outbox is emptied
FAREWELL_S = 2.0  # for the last events at the end of the program
ABANDON_S = 1.0  # for an unfinished attempt to connect, which may hang in the kernel


class ControlLink:
    """Safe from any thread. Without SOLAR_CONTROL_URL nothing is ever started or queued.

    Args:
        registration: gives `{host_name, instances, roles, gpu_type, supported_backends, version}`.
        instances: gives all instances, flat.
        health: gives the `data` of `host_health`.
        dispatch: runs one REST call in this process: method, path with query, body; gives status, body.
        delivered: called for each event of a job that control has; at once when no control is configured.

    Raises:
        SettingsError: SOLAR_CONTROL_URL is not an address.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registration: Callable[[], Json],
        instances: Callable[[], list[Json]],
        health: Callable[[], Json],
        dispatch: Dispatch,
        delivered: Delivered,
    ):
        self._settings = settings
        self._reports = Reports(registration, instances, health)
        self._address = control_address(settings.solar_control_url)
        self._auth = {
            "api_key": settings.solar_control_api_key or settings.api_key,
            "host_name": settings.host_name or socket.gethostname(),
        }
        self._commands = Commands(dispatch, enabled=settings.commands_over_link)
        self._inbox = Inbox()
        self._delivered = delivered
        self._outbox = Outbox()
        self._drops = DropReport(self._outbox.dropped)
        self._record = LinkRecord(self._address)
        self._backoff = Backoff(settings.ws_reconnect_delay, settings.ws_reconnect_max_delay)
        self._attempts = itertools.count(1)
        self._attempt = 0  # the latest one; the control thread alone writes it and the next one
        self._connection: Connection | None = None
        self._closing: float | None = None  # the deadline, once `close` was called
        self._thread = Thread(target=self._run, args=(self._address,), name="control", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        if self._address is None:
            logger.info("control: no SOLAR_CONTROL_URL, this host is on its own")
            return
        self._thread.start()

    def close(self, deadline: float) -> None:
        """Send what is left if control is there, then end, by `deadline` (`time.monotonic()`)."""
        if not self._thread.is_alive():
            return
        self._closing = deadline
        self._inbox.tell(None, "close")
        if self._record.state not in CONNECTED:  # nobody to say anything to
            connection = self._connection
            if connection is not None:
                connection.cut()
            deadline = min(deadline, time.monotonic() + ABANDON_S)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            logger.warning("control: an attempt to reach %s is left behind", self._address)

    def publish(self, event: Event) -> None:
        """Tell control in good time. Never waits for it, never raises."""
        if self._address is not None:
            self._outbox.put(event)
        elif isinstance(event, JobEvent):
            self._delivered(event)

    def reconnect(self) -> str:
        """Try now rather than after the present wait; revives a link that was rejected.

        Returns:
            `already_connected` or `reconnecting`.

        Raises:
            Unavailable: no control is configured.
        """
        if self._address is None:
            raise Unavailable("no solar-control is configured: set SOLAR_CONTROL_URL and start again")
        if self._record.state in CONNECTED:
            return "already_connected"
        self._inbox.tell(None, "reconnect")
        return "reconnecting"

    @property
    def host_id(self) -> str | None:
        """The id that control gave this host; None while it is not registered."""
        return self._record.host_id

    def status(self) -> Json:
        """How it stands: `{state, since, url, host_id, last_contact, connections, error, queued, dropped}`.

        `queued` and `dropped` count entries by kind; `error` says why the last connection ended.
        """
        connection = self._connection
        if connection is not None:
            self._record.heard(connection.heard)
        return {
            **self._record.as_json(),
            "queued": self._outbox.queued(),
            "dropped": self._outbox.dropped(),
        }

    def _run(self, address: str) -> None:
        while self._closing is None:
            try:
                self._connect_once(address)
            except LinkDown as error:
                self._is_down(error)
            except Exception:  # the link outlives errors of this program
                logger.exception("control: the connection ended by an error of this program")
            if self._closing is None:
                self._pause()

    def _connect_once(self, address: str) -> None:
        """Make one connection and serve it until it ends.

        Raises:
            LinkDown: it could not be made or was lost.
        """
        self._attempt = next(self._attempts)
        connection = self._connection = Connection(
            address,
            self._auth,
            handlers={
                **{event: partial(self._inbox.tell, self._attempt, event) for event in EVENTS},
                "command": self._commands.answer,
            },
            on_heard=partial(self._inbox.tell, None, "heard"),
            verify=not self._settings.insecure,
            ca_file=self._settings.ssl_cert_file or self._settings.requests_ca_bundle,
        )
        try:
            connection.open()
            self._serve(connection)
        finally:
            if self._record.state in CONNECTED:
                self._record.move(LinkState.CONNECTING)  # `host_id` is None from now on
            self._record.heard(connection.heard)
            self._connection = None
            connection.end(politely=self._closing is not None)  # reads the last acknowledgements
            self._pass_on_delivered()
            self._outbox.disconnected()

    def _serve(self, connection: Connection) -> None:
        session = Session(
            connection,
            self._attempt,
            self._inbox,
            self._outbox,
            self._record,
            self._reports,
            self._settings,
            self._joined,
        )
        while self._closing is None:
            session.step(TICK_S)
            self._pass_on_delivered()
            self._drops.tick()
        give_up_at = min(self._closing, time.monotonic() + FAREWELL_S)
        while (
            self._record.state is LinkState.REGISTERED
            and not self._outbox.is_empty
            and time.monotonic() < give_up_at
        ):
            session.step(TICK_S)

    def _pass_on_delivered(self) -> None:
        for event in self._outbox.take_delivered():
            self._delivered(event)

    def _joined(self) -> None:
        self._record.connected()
        self._backoff.reset()

    def _is_down(self, error: LinkDown) -> None:
        state = LinkState.CONNECTING
        if isinstance(error, Rejected):
            state = LinkState.REJECTED
        elif isinstance(error, Unauthorized):
            state = LinkState.UNAUTHORIZED
        if self._record.move(state, error=str(error)):
            logger.warning("control at %s: %s", self._address, error)

    def _pause(self) -> None:
        """Wait before the next attempt; after a rejection until somebody asks for it."""
        resume_at = time.monotonic() + self._backoff.next()
        while self._closing is None:
            self._drops.tick()
            rejected = self._record.state is LinkState.REJECTED
            remaining_s = resume_at - time.monotonic()
            if remaining_s <= 0 and not rejected:
                return
            news = self._inbox.next(None if rejected else remaining_s)
            if news is None:
                continue
            if news.name == "reconnect":
                self._backoff.reset()
                return
            if news.name == "rejected" and news.attempt == self._attempt:  # it came after the disconnect
                self._is_down(rejection(news))
