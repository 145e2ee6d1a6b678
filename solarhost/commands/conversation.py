"""A chat with one instance, over the OpenAI API that it serves on its own port."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import requests

from solarhost.commands.failures import CommandFailed
from solarhost.commands.remote import ANY_ADDRESS, CONNECT_S, Remote, cause_of, http_url
from solarhost.net import is_loopback

ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an answer; `thought` when the model only thinks it."""

    text: str
    thought: bool = False


class Conversation:
    """Keeps what was said and sends it along with each question, so that the model knows it.

    The instance gets its own key where it has one, else the agent's.
    """

    def __init__(
        self, remote: Remote, instance: Mapping[str, Any], system: str | None, sampling: Mapping[str, Any]
    ):
        """Raises CommandFailed: it does not chat, does not run, or can't be reached from here."""
        self._alias = str(instance["config"]["alias"])
        host = _reachable_host(remote, instance)
        self._url = http_url(host, instance["port"]) + ENDPOINT
        self._session = requests.Session()
        self._session.trust_env = not is_loopback(host)
        self._key = instance["config"].get("api_key") or remote.key
        self._request = {"model": instance["served_model_name"] or self._alias, **sampling}
        self._said: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self.cut_off = False  # whether the last answer ended for want of room

    def ask(self, text: str, images: Sequence[str] = ()) -> Generator[Piece]:
        """The answer, piece by piece. What was heard of it is kept, also when the caller stops listening.

        Args:
            images: data URIs.

        Raises:
            CommandFailed: there is no answer, or it broke off; the question is then forgotten.
        """
        heard: list[str] = []
        question = {"role": "user", "content": _content(text, images)}
        try:
            for piece in self._stream([*self._said, question]):
                if not piece.thought:
                    heard.append(piece.text)
                yield piece
        except CommandFailed:
            heard.clear()
            raise
        finally:
            if heard:
                self._said += [question, {"role": "assistant", "content": "".join(heard)}]

    def answer(self, text: str, images: Sequence[str] = ()) -> dict[str, Any]:
        """The whole answer as the instance gives it. Raises CommandFailed."""
        question = {"role": "user", "content": _content(text, images)}
        with closing(self._post([*self._said, question], stream=False)) as response:
            try:
                answered: dict[str, Any] = response.json()
            except (requests.RequestException, ValueError) as error:
                raise self._broke_off(cause_of(error)) from error
        return answered

    def _stream(self, messages: list[dict[str, Any]]) -> Iterator[Piece]:
        self.cut_off = False
        with closing(self._post(messages, stream=True)) as response:
            try:
                for line in response.iter_lines():
                    if not line.startswith(b"data: "):
                        continue
                    if line == b"data: [DONE]":
                        return
                    yield from self._pieces(json.loads(line[6:]))
            except (requests.RequestException, ValueError) as error:
                raise self._broke_off(cause_of(error)) from error
        raise self._broke_off("the connection ended")

    def _pieces(self, event: Mapping[str, Any]) -> Iterator[Piece]:
        if "error" in event:
            raise self._broke_off(_message(event))
        for choice in event.get("choices", ()):
            self.cut_off = self.cut_off or choice.get("finish_reason") == "length"
            delta = choice.get("delta", {})
            if delta.get("reasoning_content"):
                yield Piece(delta["reasoning_content"], thought=True)
            if delta.get("content"):
                yield Piece(delta["content"])

    def _post(self, messages: list[dict[str, Any]], *, stream: bool) -> requests.Response:
        try:
            response = self._session.post(
                self._url,
                json={**self._request, "messages": messages, "stream": stream},
                headers={"Authorization": f"Bearer {self._key}"},
                stream=stream,
                timeout=(CONNECT_S, None),  # a long prompt takes its time
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise CommandFailed(f"{self._alias} does not answer at {self._url}: {cause_of(error)}") from error
        if not response.ok:
            with closing(response):
                raise self._refused(response)
        return response

    def _refused(self, response: requests.Response) -> CommandFailed:
        try:
            why = _message(response.json())
        except ValueError:
            why = f"HTTP {response.status_code}"
        return CommandFailed(f"{self._alias} refuses this: {why}")

    def _broke_off(self, why: str) -> CommandFailed:
        hint = f"`solar-host instances logs {self._alias}` may say why"
        return CommandFailed(f"the answer of {self._alias} broke off: {why}", hint)


def _reachable_host(remote: Remote, instance: Mapping[str, Any]) -> str:
    """Where the instance listens, as seen from here. Raises CommandFailed: it can't be asked."""
    config = instance["config"]
    alias, endpoints = config["alias"], instance["supported_endpoints"]
    if ENDPOINT not in endpoints:
        raise CommandFailed(f"{alias} does not chat, it serves {', '.join(endpoints)}")
    if instance["status"] != "running":
        raise CommandFailed(f"{alias} is {instance['status']}", "start it, or give --start")
    host = remote.host if config["host"] in ANY_ADDRESS else config["host"]
    if is_loopback(host) and not is_loopback(remote.host):
        raise CommandFailed(f"{alias} can only be reached from its own machine", "run this there")
    if remote.url.startswith("https:") and not is_loopback(host):
        why = f"{alias} speaks plain HTTP on port {instance['port']}, and the key would be seen on the way"
        raise CommandFailed(why, "run this on its machine, or through an SSH tunnel")
    return host


def _content(text: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    pictures = [{"type": "image_url", "image_url": {"url": uri}} for uri in images]
    return [*pictures, {"type": "text", "text": text}]


def _message(body: Any) -> str:
    """The sentence of an OpenAI error, or of the agent's kind."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    found = error.get("message") or error.get("detail") if isinstance(error, Mapping) else error
    return str(found)
