"""Where solar-control is, from what operators write."""

from urllib.parse import urlsplit

from solarhost.errors import SettingsError

SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def control_address(setting: str) -> str | None:
    """`SOLAR_CONTROL_URL` as `http(s)://host[:port]`, or None when it names nothing.

    Of several addresses the first counts; a path, a query and a user are left out.

    Raises:
        SettingsError: it is not an address.
    """
    text = setting.partition(",")[0].strip()
    if not text:
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _not_an_address(str(error)) from error
    if parts.scheme not in SCHEMES:
        raise _not_an_address(f"its scheme is none of {', '.join(SCHEMES)}")
    if not host:
        raise _not_an_address("it names no host")
    if ":" in host:  # an IPv6 address
        host = f"[{host}]"
    return f"{SCHEMES[parts.scheme]}://{host}" + (f":{port}" if port else "")


def _not_an_address(why: str) -> SettingsError:
    """The value itself stays out of the text: someone may have put a password into it."""
    return SettingsError(f"SOLAR_CONTROL_URL is not an address like http://control.example.com:8000: {why}")
