"""The agent that a command talks to: where it is, with which key, and what its answers mean."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import quote, urlsplit

import click
import requests

from solarhost.commands.failures import BadInput, CommandFailed, NoSuchThing, NotAuthorised, Unreachable
from solarhost.errors import SettingsError
from solarhost.net import is_loopback
from solarhost.settings import Settings, load

CONNECT_S = 5.0
ANSWER_S = 30.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - looked up, not listened on


class Remote:
    """One agent. Every call raises a `CommandFailed` that says what went wrong. Safe from any thread.

    Before the first call it asks who is there, so that the key is not given to anything else.
    """

    def __init__(self, url: str, key: str):
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
        except ValueError as error:
            raise _bad_address(url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad_address(url)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self.host = parts.hostname
        self.key = key
        self._use_proxies = not is_loopback(parts.hostname)
        self._is_known = False

    @classmethod
    def find(cls, url: str | None, key: str | None) -> Self:
        """What is not given comes from the settings of the agent that is started in this folder."""
        if url is None or key is None:
            try:
                settings = load()
            except SettingsError as error:
                raise BadInput(str(error), "set it right, or give --url and --key") from error
            url, key = url or local_url(settings), key or settings.api_key
        if not key.isascii() or not key.isprintable():
            raise BadInput(
                "the key holds characters that no header can carry", "check SOLAR_HOST_KEY or --key"
            )
        return cls(url, key)

    @property
    def stream_url(self) -> str:
        """The same address for WebSockets."""
        return "ws" + self.url.removeprefix("http")

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, Any] | None = None,
        answer_s: float | None = ANSWER_S,
    ) -> Any:
        """The parsed body of a good answer. `answer_s` is None for what takes as long as it takes."""
        self.greet()
        headers = {"X-API-Key": self.key}
        return self._meaning(self._send(method, path, answer_s, json=body, params=query, headers=headers))

    def greet(self) -> None:
        """Raises Unreachable: no agent is there."""
        if self._is_known:
            return
        answer = self._send("GET", "/", ANSWER_S)
        try:
            about = answer.json()
        except ValueError as error:
            raise self._stranger(answer) from error
        if not isinstance(about, dict) or about.get("service") != "solar-host":
            raise self._stranger(answer)
        self._is_known = True

    def _send(self, method: str, path: str, answer_s: float | None, **options: Any) -> requests.Response:
        try:
            with requests.Session() as session:
                session.trust_env = self._use_proxies
                return session.request(
                    method,
                    self.url + path,
                    timeout=(CONNECT_S, answer_s),
                    allow_redirects=False,  # the key is for this address alone
                    **options,
                )
        except requests.RequestException as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"no agent answers at {self.url}: {cause_of(error)}",
            "start it with `solar-host`, or name another with --url or SOLAR_HOST_URL; "
            "`solar-host doctor` looks closer",
        )

    def refused(self) -> NotAuthorised:
        return NotAuthorised(
            f"the agent at {self.url} does not accept this key",
            "give the agent's API_KEY as SOLAR_HOST_KEY, as --key, or in the .env of this folder",
        )

    def _meaning(self, answer: requests.Response) -> Any:
        try:
            body = answer.json()
        except ValueError as error:
            raise self._stranger(answer) from error
        if answer.status_code < 300:
            return body
        raise self._failure(answer.status_code, body if isinstance(body, dict) else {})

    def _stranger(self, answer: requests.Response) -> Unreachable:
        return Unreachable(
            f"what answers at {self.url} is no Solar Host (HTTP {answer.status_code})",
            "check --url, SOLAR_HOST_URL, HOST and PORT",
        )

    def _failure(self, status: int, body: Mapping[str, Any]) -> CommandFailed:
        sentence = _sentence(body) or f"the agent answered HTTP {status}"
        if status == requests.codes.unauthorized and "source_uri" not in body:
            return self.refused()
        if status == requests.codes.unauthorized:
            return CommandFailed(
                sentence, "set HF_TOKEN or HARBOR_USERNAME and HARBOR_PASSWORD for the agent"
            )
        if status == requests.codes.not_found:
            return NoSuchThing(sentence)
        details = [_in_commands(f"{field}: {text}") for field, texts in _errors(body) for text in texts]
        tail = body.get("log_tail")
        if isinstance(tail, list) and tail:
            details += ["the end of its log:", *(str(line) for line in tail)]
        return CommandFailed(sentence, _hint(status, body), tuple(details) if len(details) > 1 else ())


def local_url(settings: Settings) -> str:
    """The address under which an agent with these settings is reached from this machine."""
    return http_url(ANY_ADDRESS.get(settings.host, settings.host), settings.port)


def http_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bad_address(url: str) -> BadInput:
    return BadInput(f"{url!r} is not an address of an agent", "write it as http://HOST:PORT")


def path(*pieces: object) -> str:
    """A path of the API; no piece can leave its place in it."""
    return "".join(f"/{quote(str(piece), safe='')}" for piece in pieces)


def remote_command(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `--url`, `--key` and `--json`; it gets `remote` and `as_json`."""

    @click.option("--url", help="Address of the agent; else SOLAR_HOST_URL, else from the settings.")
    @click.option("--key", help="Its API key; else SOLAR_HOST_KEY, else API_KEY of the settings.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
    @functools.wraps(function)
    def command(*, url: str | None, key: str | None, **arguments: Any) -> None:  # noqa: ARG001 - in the context
        function(remote=Remote.find(*from_context(click.get_current_context())), **arguments)

    return command


def from_context(ctx: click.Context) -> tuple[str | None, str | None]:
    """`--url` and `--key` of the command, else of `solar-host` before it, else of the environment."""
    before = ctx.find_root().params
    url, key = (ctx.params.get(name) or before.get(name) or None for name in ("url", "key"))
    return url, key


def _sentence(body: Mapping[str, Any]) -> str:
    """A `detail` is a sentence, or an object with the values measured."""
    detail = body.get("detail")
    if isinstance(detail, Mapping):
        said = next((name for name in ("detail", "reason") if detail.get(name)), "error")
        values = ", ".join(
            f"{name} {value}" for name, value in detail.items() if name not in ("error", "detail", said)
        )
        text = str(detail[said]) if said != "error" else str(detail.get("error", "")).replace("_", " ")
        return _in_commands(f"{text} ({values})" if values else text)
    return _in_commands(str(detail or ""))


def _in_commands(text: str) -> str:
    """What the agent tells its clients to call, as an operator calls it."""
    return text.replace("POST /models/pull", "`solar-host models pull`")


def _errors(body: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    errors = body.get("errors")
    return list(errors.items()) if isinstance(errors, Mapping) else []


def _hint(status: int, body: Mapping[str, Any]) -> str:
    if "instance_id" in body and "log_tail" in body:
        if not body["log_tail"]:
            return ""  # nothing ran that could have printed
        return f"`solar-host instances logs {body['instance_id']}` shows all that it printed"
    match status:
        case requests.codes.service_unavailable:
            return "`solar-host doctor` finds what is missing"
        case requests.codes.insufficient_storage:
            return "free some disk: `solar-host models ls`, then `solar-host models rm NAME`"
        case requests.codes.internal_server_error:
            return "the agent's own log says more"
    return ""


def cause_of(error: BaseException) -> str:
    """The innermost reason, in the words of the system."""
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    cause = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
