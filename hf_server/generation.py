"""One prompt and the answers to it, between the request thread and the scheduler."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

from hf_server.errors import ApiError

FinishReason = Literal["stop", "length"]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and what else the processor of a vision model made of the images."""

    ids: list[int]
    extras: Mapping[str, Any] = field(default_factory=dict)  # tensors by name of the model's argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, and when to stop."""

    max_tokens: int
    temperature: float = 1.0  # 0: always the likeliest token
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # how many alternatives to report; None reports nothing


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]  # likeliest first


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one answer: text that is certain, and at its end why it ended."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended without an answer."""

    error: ApiError


Outbox = SimpleQueue[Delta | Failed]


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """Work for the scheduler. It alone writes the counts; they are final once the last Delta is out."""

    id: str
    prompt: Prompt
    sampling: Sampling
    choices: int
    first_index: int  # index of the first answer among all answers of the request
    streamed: bool  # wants each piece of text as it comes, not only the whole
    outbox: Outbox
    is_abandoned: Callable[[], bool]  # cheap: the scheduler asks before each token
    submitted_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    cached_tokens: int = 0
    generated_tokens: int = 0
