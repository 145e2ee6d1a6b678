"""What is elsewhere: the registry, the Hub, solar-control."""

import queue
import socket
import time
from typing import Any

from solarhost.commands.checks.agent import health_of_agent
from solarhost.commands.checks.finding import Finding, green, red, yellow
from solarhost.control.connection import Connection, LinkDown, Unauthorized
from solarhost.errors import SettingsError
from solarhost.net import control_address
from solarhost.settings import Settings

ANSWER_S = 10.0
DISTURBED = "only if you use solar-control: check SOLAR_CONTROL_URL and the network"


def check_credentials(settings: Settings) -> list[Finding]:
    """Their presence; they are never printed."""
    return [_registry(settings), _hub(settings)]


def _registry(settings: Settings) -> Finding:
    if not settings.harbor_url:
        return green("registry", "not configured (only repo:// models need it)")
    if not (settings.harbor_username and settings.harbor_password):
        missing = "HARBOR_PASSWORD" if settings.harbor_username else "HARBOR_USERNAME"
        return yellow(
            "registry", f"{missing} is not set", f"set it, unless {settings.harbor_url} is open to all"
        )
    return green("registry", f"{settings.harbor_url} with user and password")


def _hub(settings: Settings) -> Finding:
    if not settings.hf_token:
        return green("hub", "HF_TOKEN is not set (only gated and private models need it)")
    if not settings.hf_token.startswith("hf_"):
        return yellow(
            "hub", "HF_TOKEN does not look like a token (hf_…)", "make one in the settings of the Hub"
        )
    return green("hub", "HF_TOKEN is set")


def check_control(settings: Settings) -> list[Finding]:
    """The link of the running agent; without one, a connection is tried."""
    try:
        address = control_address(settings.solar_control_url)
    except SettingsError as error:
        return [red("control", str(error), "correct SOLAR_CONTROL_URL")]
    if address is None:
        return [green("control", "not configured: a host of its own")]
    link = _link_of_agent(settings)
    return [_connect(settings, address) if link is None else _judge(link, address)]


def _link_of_agent(settings: Settings) -> dict[str, Any] | None:
    health = health_of_agent(settings)
    if health is None or health["control"]["state"] == "disabled":
        return None
    link: dict[str, Any] = health["control"]
    return link


def _judge(link: dict[str, Any], address: str) -> Finding:
    match link["state"]:
        case "registered":
            return green("control", f"registered at {address}")
        case "pending":
            return yellow(
                "control", f"{address} waits for an administrator's approval", "approve the host there"
            )
        case "rejected":
            step = "have it approved there, then `solar-host reconnect`"
            return red("control", f"{address} has rejected this host", step)
        case "unauthorized":
            return _refused(address)
    return red("control", f"{address} is not connected: {link.get('error') or link['state']}", DISTURBED)


def _connect(settings: Settings, address: str) -> Finding:
    """Shake hands as the agent does, say nothing, and leave."""
    news: queue.Queue[tuple[str, tuple[object, ...]]] = queue.Queue()
    events = ("connect", "connect_error", "registration_ack", "pending", "rejected")
    connection = Connection(
        address,
        {
            "api_key": settings.solar_control_api_key or settings.api_key,
            "host_name": settings.host_name or socket.gethostname(),
        },
        handlers={event: _teller(news, event) for event in events},
        on_heard=lambda: None,
        verify=not settings.insecure,
        ca_file=settings.ssl_cert_file or settings.requests_ca_bundle,
    )
    try:
        connection.open()
        return _first_word(news, address)
    except Unauthorized:
        return _refused(address)
    except LinkDown as error:
        return red("control", f"{address} is not reachable: {error}", DISTURBED)
    finally:
        connection.end(politely=True)


def _teller(news: "queue.Queue[tuple[str, tuple[object, ...]]]", event: str) -> Any:
    return lambda *data: news.put((event, data))


def _first_word(news: "queue.Queue[tuple[str, tuple[object, ...]]]", address: str) -> Finding:
    until = time.monotonic() + ANSWER_S
    connected = False
    while (left_s := until - time.monotonic()) > 0:
        try:
            event, _ = news.get(timeout=min(left_s, 2.0) if connected else left_s)
        except queue.Empty:
            break
        if event == "connect_error":
            return _refused(address)
        if event == "connect":
            connected = True
        else:
            state = {"registration_ack": "registered"}.get(event, event)
            return _judge({"state": state}, address)
    if connected:
        return green("control", f"{address} accepts the key")
    return red("control", f"{address} does not answer the handshake", DISTURBED)


def _refused(address: str) -> Finding:
    step = "set SOLAR_CONTROL_API_KEY to a key that is valid there"
    return red("control", f"{address} refuses the key", step)
