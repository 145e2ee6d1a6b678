"""One log line when a request's work begins and one when it ends."""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hf_server import log
from hf_server.errors import ApiError
from hf_server.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class Record:
    """The story of one request, for the log and the metrics."""

    metrics: Metrics
    endpoint: str
    prefix: str  # of the id, as OpenAI's: chatcmpl, cmpl, embd, classify
    id: str = ""
    began: float = field(default_factory=time.monotonic)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    first_token_at: float | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex[:24]}"

    def begin(self, prompt_tokens: int, *, inputs: int = 1, streamed: bool = False) -> None:
        self.prompt_tokens = prompt_tokens
        log.event(
            "request_start",
            id=self.id,
            endpoint=self.endpoint,
            prompt_tokens=prompt_tokens,
            inputs=inputs,
            stream=streamed,
        )

    @contextmanager
    def encoding(self, texts: Sequence[list[int]]) -> Iterator[int]:
        """Begin with the texts, and end with the status of what happens inside; gives their tokens."""
        tokens = sum(len(ids) for ids in texts)
        self.begin(tokens, inputs=len(texts))
        try:
            yield tokens
        except ApiError as error:
            self.end(error.status)
            raise
        self.metrics.prompt_tokens.inc(tokens)
        self.end(200)

    def end(self, status: int) -> None:
        """Write the end; status 499 stands for a client that went away."""
        now = time.monotonic()
        duration_s = now - self.began
        decode_s = now - self.first_token_at if self.first_token_at else None
        log.event(
            "request_end",
            id=self.id,
            endpoint=self.endpoint,
            status=status,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            cached_tokens=self.cached_tokens,
            duration_s=duration_s,
            ttft_s=self.first_token_at and self.first_token_at - self.began,
            decode_s=decode_s,
            finish_reason=self.finish_reason,
        )
        self.metrics.requests.labels(self.endpoint, str(status)).inc()
        self.metrics.duration.labels(self.endpoint).observe(duration_s)
