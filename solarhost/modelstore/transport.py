"""HTTP as both kinds of source use it: bounded waits, and answers sorted into what to do about them."""

import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from solarhost.modelstore.failures import Interrupted, PullError

CONNECT_TIMEOUT_S = 20.0
LONGEST_WAIT_S = 300.0  # whatever a Retry-After asks for


class _BoundedAdapter(HTTPAdapter):
    """Gives every request a limit on silence, since neither `requests` nor oras sets one."""

    def __init__(self, stall_s: float):
        self._timeout = (min(CONNECT_TIMEOUT_S, stall_s), stall_s)
        super().__init__()

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = self._timeout
        return super().send(request, *args, **kwargs)


def bound(session: requests.Session, stall_s: float) -> requests.Session:
    """Let no request of `session` wait longer than `stall_s` for the next byte, nor log in by itself."""
    adapter = _BoundedAdapter(stall_s)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.auth = _no_netrc
    return session


def _no_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps `requests` from putting a login of ~/.netrc in place of our header."""
    return request


def check(response: requests.Response) -> None:
    """Return for a 200 or 206.

    Raises:
        Interrupted: asking again may help: busy, broken, or a redirect to an address that expired.
        PullError: it won't.
    """
    status = response.status_code
    if status in (200, 206):
        return
    what = f"{shown(response.url)} answered {status} {response.reason}"
    expired = bool(response.history) and status in (401, 403, 404, 410)
    response.close()
    if expired or status in (408, 425, 429) or status >= 500:
        raise Interrupted(what, retry_after_s(response.headers))
    if status in (401, 403):
        raise PullError("auth_failed", what)
    if status in (404, 410):
        raise PullError("not_found", what)
    raise PullError("model_pull_failed", what, status=502)


def broken(error: Exception, stall_s: float) -> Interrupted:
    """What to tell of a connection that failed.

    Raises:
        PullError: the certificate is not trusted, which trying again won't change.
    """
    root: BaseException = error
    while root.__cause__ or root.__context__:
        root = root.__cause__ or root.__context__ or root
    if isinstance(root, ssl.SSLCertVerificationError):
        raise PullError(
            "source_unreachable",
            f"the certificate was refused ({root.verify_message}); "
            "name the file of a private CA in SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
        ) from error
    if isinstance(root, TimeoutError):
        return Interrupted(f"no answer within {stall_s:g} s")
    # Of the address only the host is told: those of redirects are signed, and a signature is a key.
    host = _host(error)
    return Interrupted(f"the connection{f' to {host}' if host else ''} failed: {type(root).__name__}: {root}")


def _host(error: Exception) -> str | None:
    """Whom the failed request was for, if the error knows it."""
    try:
        return urlsplit(str(error.request.url)).hostname  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError, ValueError):  # one without a request
        return None


def shown(url: str) -> str:
    """`url` without user, query and fragment, which may hold keys."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def retry_after_s(headers: Mapping[str, str]) -> float:
    """How long the server asks to be left alone; 0 when it doesn't say."""
    text = headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT_S)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        wait_s = (moment - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):  # no date, or one that no calendar has
        return 0.0
    return min(max(0.0, wait_s), LONGEST_WAIT_S)


class Retries:
    """Counts failures in a row and waits between tries, longer each time.

    `tell` gets a sentence before each wait, and None when it goes on.
    """

    def __init__(self, limit: int, delay_s: float, tell: Callable[[str | None], None]):
        self._limit = limit
        self._delay_s = delay_s
        self._tell = tell
        self._failures = 0

    def progressed(self) -> None:
        """Bytes came: start counting anew."""
        if self._failures:
            self._failures = 0
            self._tell(None)

    def wait(self, error: Interrupted) -> None:
        """Sleep before the next try.

        Raises:
            PullError: there were enough tries.
        """
        self._failures += 1
        if self._failures > self._limit:
            raise PullError("source_unreachable", f"gave up after {self._failures} tries: {error}") from error
        wait_s = max(min(self._delay_s * 2 ** (self._failures - 1), 60.0), error.retry_after_s)
        self._tell(f"{error}; try {self._failures + 1} of {self._limit + 1} in {wait_s:g} s")
        time.sleep(wait_s)
