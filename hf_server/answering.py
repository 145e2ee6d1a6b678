"""From generations to an HTTP answer, whole or streamed; chat and completions say how it looks."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from flask import Response

from hf_server import render
from hf_server.clients import Client
from hf_server.errors import ApiError, ClientGone
from hf_server.generation import Delta, Failed, Generation, Outbox
from hf_server.records import Record
from hf_server.requests import StreamOptions


class Format(Protocol):
    """How one endpoint shows its answers."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice of a stream's first event for one answer, if there is one."""

    def piece(self, delta: Delta) -> dict[str, Any]:
        """The choice of one event of a stream."""

    def choice(self, delta: Delta) -> dict[str, Any]:
        """One of the choices of a whole answer, which came as one delta."""

    def envelope(self, choices: list[dict[str, Any]], *, streamed: bool) -> dict[str, Any]:
        """The object around the choices."""


class Answering:
    """One request's way from submitted generations to its response."""

    def __init__(
        self,
        generations: Sequence[Generation],
        outbox: Outbox,
        form: Format,
        record: Record,
        client: Client,
    ):
        self._generations = generations
        self._outbox = outbox
        self._form = form
        self._record = record
        self._client = client
        self._left = sum(generation.choices for generation in generations)

    def respond(self, stream: StreamOptions) -> Response:
        """As the request wants it. Raises ApiError where nothing was generated."""
        return self._stream(stream.include_usage) if stream.streamed else self._whole()

    def _whole(self) -> Response:
        choices = []
        try:
            while self._left:
                delta = self._next()
                choices.append(self._form.choice(delta))
        except ApiError as error:
            self._end(error.status)
            raise
        self._end(200)
        choices.sort(key=lambda choice: choice["index"])
        return render.answer(self._form.envelope(choices, streamed=False) | {"usage": self.usage()})

    def _stream(self, include_usage: bool) -> Response:
        """Begin the response with the first piece, so that an early failure still gets its status."""
        try:
            first = self._next()
        except ApiError as error:
            self._end(error.status)
            raise
        return Response(self._events(first, include_usage=include_usage), headers=render.EVENT_HEADERS)

    def usage(self) -> dict[str, Any]:
        """Counts of the whole request; each prompt counts once, however many answers it got."""
        record = self._record
        return {
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.generated_tokens,
            "total_tokens": record.prompt_tokens + record.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": record.cached_tokens},
        }

    def _events(self, delta: Delta, *, include_usage: bool) -> Iterator[bytes]:
        status = ClientGone.status  # unless it gets to the end
        no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
        opened: set[int] = set()
        try:
            while True:
                if delta.index not in opened:
                    opened.add(delta.index)
                    if opening := self._form.opening(delta.index):
                        yield render.event(self._form.envelope([opening], streamed=True) | no_usage)
                yield render.event(self._form.envelope([self._form.piece(delta)], streamed=True) | no_usage)
                if not self._left:
                    break
                delta = self._next()
            self._count()
            if include_usage:
                yield render.event(self._form.envelope([], streamed=True) | {"usage": self.usage()})
            yield render.LAST_EVENT
            status = 200
        except ApiError as error:  # the status line is out already
            status = error.status
            if status != ClientGone.status:
                yield render.event(error.body())
        finally:
            if status == ClientGone.status:
                self._client.give_up()
            self._end(status)

    def _next(self) -> Delta:
        news = self._outbox.get()
        if isinstance(news, Failed):
            self._client.give_up()  # the request's other generations have no reader any more
            raise news.error
        if news.finish_reason:
            self._left -= 1
            self._record.finish_reason = news.finish_reason
        return news

    def _count(self) -> None:
        record = self._record
        record.generated_tokens = sum(g.generated_tokens for g in self._generations)
        record.cached_tokens = sum(g.cached_tokens for g in self._generations)
        first = [g.first_token_at for g in self._generations if g.first_token_at]
        record.first_token_at = min(first, default=None)

    def _end(self, status: int) -> None:
        self._count()
        self._record.end(status)
