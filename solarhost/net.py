"""Addresses."""

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from solarhost.errors import SettingsError

CONTROL_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")


def is_host(text: str) -> bool:
    """True when `text` can be an IP address or a host name."""
    return _HOST.fullmatch(text) is not None and not text.endswith(".sock")


def is_loopback(host: str) -> bool:
    """True when `host` names this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(setting: str, text: str, schemes: Collection[str], *, otherwise: str) -> SplitResult:
    """The parts of an address that an operator wrote.

    Args:
        setting: the variable that it comes from.
        otherwise: the scheme of an address that has none.

    Raises:
        SettingsError: it is none. Its text stays out of the sentence: it may hold a password.
    """
    try:
        parts = urlsplit(text if "://" in text else f"{otherwise}://{text}")
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _not_an_address(setting, str(error)) from error
    if parts.scheme not in schemes:
        raise _not_an_address(setting, f"its scheme is none of {', '.join(schemes)}")
    if not host:
        raise _not_an_address(setting, "it names no host")
    if not is_host(host):
        raise _not_an_address(setting, "its host can't be one")
    return parts


def control_address(setting: str) -> str | None:
    """`SOLAR_CONTROL_URL` as `http(s)://host[:port]`, or None when it names nothing.

    Of several addresses the first counts; a path, a query and a user are left out.

    Raises:
        SettingsError: it is not an address.
    """
    text = setting.partition(",")[0].strip()
    if not text:
        return None
    parts = parse_address("SOLAR_CONTROL_URL", text, CONTROL_SCHEMES, otherwise="http")
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{CONTROL_SCHEMES[parts.scheme]}://{host}" + (f":{parts.port}" if parts.port else "")


def _not_an_address(setting: str, why: str) -> SettingsError:
    return SettingsError(f"{setting} is not an address like https://example.com:8000: {why}")
