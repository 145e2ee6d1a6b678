"""What is said over one connection: who this host is, what happens on it, and whether control still lives."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from solarhost.control import payloads
from solarhost.control.batches import Message, kept_message
from solarhost.control.connection import Connection, LinkDown, Rejected, Unauthorized, Unsendable
from solarhost.control.news import Inbox, News
from solarhost.control.outbox import Outbox
from solarhost.control.payloads import Json
from solarhost.control.queues import Item
from solarhost.control.state import LinkRecord, LinkState
from solarhost.settings import Settings
from solarhost.times import now_iso

logger = logging.getLogger(__name__)

WELCOME_S = 30.0  # for control to say whether it knows the host
ACKNOWLEDGE_S = 10.0  # an event is taken as delivered when control lives this long without acknowledging it

EVENTS = ("connect", "registration_ack", "pending", "rejected", "connect_error", "disconnect")
URGENT = frozenset(
    {"registration_ack", "heard", "confirmed", "close"}
)  # something can be done before the next tick


class Reports(NamedTuple):
    """Where the content of the link's own messages comes from; see ControlLink."""

    registration: Callable[[], Json]
    instances: Callable[[], list[Json]]
    health: Callable[[], Json]


class Session:
    """Belongs to the control thread, which calls `step` again and again while the connection lasts.

    Args:
        attempt: the number under which news about this connection come.
        on_joined: called when control has let the host in.
    """

    def __init__(
        self,
        connection: Connection,
        attempt: int,
        inbox: Inbox,
        outbox: Outbox,
        record: LinkRecord,
        reports: Reports,
        settings: Settings,
        on_joined: Callable[[], None],
    ):
        self._connection = connection
        self._attempt = attempt
        self._inbox = inbox
        self._outbox = outbox
        self._record = record
        self._reports = reports
        self._on_joined = on_joined
        self._silence_s = settings.ws_silence_timeout
        self._health_interval_s = settings.health_interval_s
        self._began_at = self._pinged_at = self._health_due = time.monotonic()
        self._welcomed = False  # control has said something about this host
        self._unintroduced = False  # control has acknowledged the host and knows nothing else about it
        self._answered = False  # control has acknowledged an event in this step
        # Names of events that control takes without a word: it has no handler for them, so it is waited
        # for once only.
        self._unacknowledged: set[str] = set()

    def step(self, timeout_s: float) -> None:
        """Take in what came within `timeout_s`, check the connection, send what is due.

        Raises:
            LinkDown: the connection ended, or was given up.
        """
        self._listen(timeout_s)
        self._watch()
        if self._unintroduced and self._connection.joined:
            self._introduce()
        if self._record.state is LinkState.REGISTERED and not self._unintroduced:
            self._send_due()

    def _listen(self, timeout_s: float) -> None:
        self._answered = False
        until = time.monotonic() + timeout_s
        while (remaining_s := until - time.monotonic()) > 0:
            news = self._inbox.next(remaining_s)
            if news is None:
                return
            if news.attempt == self._attempt:
                self._obey(news)
            if news.name in URGENT:
                return

    def _obey(self, news: News) -> None:
        match news.name:
            case "connect":
                self._on_joined()
            case "registration_ack":
                self._welcomed = self._unintroduced = True
                self._outbox.listen()
                host_id = news.text("host_id")
                if self._record.move(LinkState.REGISTERED, host_id=host_id):
                    logger.info("control: registered as %s (%s)", news.text("host_name"), host_id)
            case "confirmed":
                self._answered = True
            case "pending":
                self._welcomed = True
                if self._record.move(LinkState.PENDING):
                    logger.info("control: waiting for approval as %s", news.text("pending_id"))
            case "rejected":
                raise rejection(news)
            case "connect_error":
                raise Unauthorized(f"it refuses this host: {news.text('message') or news.data}")
            case "disconnect":
                raise LinkDown(f"the connection ended ({news.data})")

    def _watch(self) -> None:
        if not self._connection.is_up:
            raise LinkDown("the connection was closed")
        now = time.monotonic()
        silent_s = now - (self._connection.heard or self._began_at)
        if silent_s > self._silence_s:
            raise LinkDown(f"no sign of life for {silent_s:.0f} s")
        if min(silent_s, now - self._pinged_at) > self._silence_s / 3:
            self._pinged_at = now
            self._connection.ping()
        if not self._welcomed and now - self._began_at > WELCOME_S:
            raise LinkDown(f"neither acknowledged nor pending after {WELCOME_S:.0f} s")

    def _introduce(self) -> None:
        """What control must know first after each acknowledgement; it has dropped all that came before."""
        self._unintroduced = False
        self._send(Message("registration", self._reports.registration()))
        update = payloads.instances_update(self._reports.instances(), now_iso())
        self._send(Message("instances_update", update))
        self._send_health()

    def _send_health(self) -> None:
        self._health_due = time.monotonic() + self._health_interval_s
        try:
            data = self._reports.health()
        except Exception:  # a link without this report is better than none
            logger.exception("control: no host_health this time")
            return
        self._send(Message("host_health", payloads.host_health(data)))

    def _send_due(self) -> None:
        """Send what waits, unless control hasn't taken the last lot yet.

        Kept events go out right after an answer of control only. Sent to one that has silently stopped,
        they would stay unacknowledged, go out again over the next connection, and arrive twice when it
        wakes up and finds the first copy in its receive buffer.
        """
        if not self._connection.is_idle:
            return
        if self._connection.heard is not None:
            for item in self._outbox.confirm_sent_before(self._connection.heard - ACKNOWLEDGE_S):
                self._unacknowledged.add(name := kept_message(item).event)
                logger.info("control: no acknowledgement of %s", name)
        if time.monotonic() >= self._health_due:
            self._send_health()
        if self._outbox.kept_is_due and not self._connection.probe(answered=self._answered):
            return
        for message in self._outbox.take():
            self._send(message)

    def _send(self, message: Message) -> None:
        item = message.kept
        on_ack = None if item is None else partial(self._confirmed, message.event, item)
        settled = message.event in self._unacknowledged
        try:
            self._connection.emit(message.event, message.payload, on_ack)
        except Unsendable:
            logger.exception("control: an event is left out")
            settled = True
        if item is not None and settled:
            self._outbox.confirm(item)

    def _confirmed(self, event: str, item: Item) -> None:
        """Called by the thread that reads."""
        self._unacknowledged.discard(event)
        self._outbox.confirm(item)
        self._inbox.tell(self._attempt, "confirmed")


def rejection(news: News) -> Rejected:
    return Rejected(f"this host was rejected: {news.text('reason') or 'no reason given'}")
