"""What chat and completions share in a request: limits, sampling, and fields that can't be honoured."""

import re
from dataclasses import dataclass

from hf_server import body
from hf_server.body import Body
from hf_server.errors import BadRequest
from hf_server.generation import Sampling

_MAX_TOKENS = 1 << 30
_MAX_STOPS = 16
_MAX_STOP_LENGTH = 1024
_MAX_BIASES = 1024
_TOKEN = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    streamed: bool
    include_usage: bool


def read_stream(request: Body) -> StreamOptions:
    """`stream` and `stream_options`. Raises BadRequest."""
    streamed = request.flag("stream")
    options = request.get("stream_options")
    if options is None:
        return StreamOptions(streamed, False)
    if not isinstance(options, dict):
        raise BadRequest("'stream_options' must be an object", "stream_options")
    return StreamOptions(streamed, Body(options).flag("include_usage"))


def read_choices(request: Body, max_batch: int) -> int:
    """`n`, as many answers as one batch holds at most. Raises BadRequest."""
    return request.integer("n", 1, max_batch) or 1


def read_sampling(request: Body, *, max_tokens: int, logprobs: int | None, vocabulary: int) -> Sampling:
    """How to choose tokens. Raises BadRequest."""
    return Sampling(
        max_tokens=max_tokens,
        temperature=request.number("temperature", 1.0, 0, 2),
        top_p=request.number("top_p", 1.0, 0, 1),
        seed=request.integer("seed", -(1 << 63), (1 << 63) - 1),
        stop=_stop(request),
        presence_penalty=request.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=request.number("frequency_penalty", 0.0, -2, 2),
        logit_bias=_logit_bias(request, vocabulary),
        logprobs=logprobs,
    )


def read_max_tokens(request: Body, *names: str) -> int | None:
    """The first of several names for the same limit that is there."""
    for name in names:
        value = request.integer(name, 1, _MAX_TOKENS)
        if value is not None:
            return value
    return None


def _stop(request: Body) -> tuple[str, ...]:
    value = request.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS:
        raise BadRequest(f"'stop' must be a string or a list of at most {_MAX_STOPS}", "stop")
    for stop in stops:
        if not 1 <= len(body.text(stop, "stop")) <= _MAX_STOP_LENGTH:
            raise BadRequest(f"a stop string has 1 to {_MAX_STOP_LENGTH} characters", "stop")
    return tuple(stops)


def _logit_bias(request: Body, vocabulary: int) -> dict[int, float]:
    value = request.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_BIASES:
        raise BadRequest(f"'logit_bias' must map at most {_MAX_BIASES} token ids to numbers", "logit_bias")
    biases = {}
    for token, bias in value.items():
        if not _TOKEN.fullmatch(token) or int(token) >= vocabulary or not body.is_number(bias):
            raise BadRequest(f"'logit_bias' must map token ids below {vocabulary} to numbers", "logit_bias")
        biases[int(token)] = float(max(-100, min(100, bias)))
    return biases
