"""What a loaded model offers to the request threads; knows nothing of torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hf_server import body
from hf_server.errors import BadRequest, ContextLengthExceeded
from hf_server.generation import Decode, Generation, Prompt
from hf_server.messages import Message
from hf_server.texts import TextJob, Vectors

_SAMPLE = "Some of </s> [SEP] <s>:\n  naïve GRÖSSE, 北京　and 🦊\t1234.5\n\nend "


class Prompts(Protocol):
    """Makes prompts; each call raises BadRequest or ContextLengthExceeded for what the model can't take."""

    vocabulary: int

    def chat(self, messages: Sequence[Message], template_arguments: Mapping[str, Any]) -> Prompt: ...

    def text(self, text: str) -> Prompt: ...

    def ids(self, ids: list[int]) -> Prompt: ...


class GenerationQueue(Protocol):
    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue the prompts of one request, all or none. Raises Overloaded."""

    def close(self) -> None:
        """Fail what waits and runs. Safe in a signal handler."""


class TextQueue(Protocol):
    def submit(self, job: TextJob) -> None:
        """Queue a request's texts. Raises Overloaded."""

    def release(self) -> None:
        """A submitted job has ended."""

    def close(self) -> None:
        """Fail what waits. Safe in a signal handler."""


@dataclass(frozen=True, slots=True)
class GeneratingEngine:
    """Chat and completions."""

    prompts: Prompts
    queue: GenerationQueue
    decode: Decode
    context: int  # most tokens of a prompt and its answer
    max_batch: int
    device: str

    def close(self) -> None:
        self.queue.close()


Encode = Callable[[str], list[int]]


def encode_with(tokenizer: Any) -> Encode:
    """The quickest way to the ids that `tokenizer(text)["input_ids"]` gives.

    What transformers does around its tokenizers in Rust takes longer than they do. Where the two differ,
    it is some other tokenizer, or one that changes the text first.
    """

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    expected = encode(_SAMPLE)  # turns truncation and padding off, too
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)

    def encode_in_rust(text: str) -> list[int]:
        # `encode` would hold the interpreter all the time, seconds for a text of megabytes.
        ids: list[int] = backend.encode_batch_fast([text])[0].ids
        return ids

    return encode_in_rust if backend is not None and encode_in_rust(_SAMPLE) == expected else encode


@dataclass(slots=True)
class VectorEngine:
    """Embeddings, or the scores of `labels`."""

    tokenizer: Any
    queue: TextQueue
    max_tokens: int
    labels: tuple[str, ...]
    device: str
    _encode: Encode = field(init=False)

    def __post_init__(self) -> None:
        self._encode = encode_with(self.tokenizer)

    def tokens(self, text: str, param: str) -> list[int]:
        """Token ids of one text. Raises BadRequest, ContextLengthExceeded."""
        return self._checked(self._encode(text), param)

    def given_tokens(self, ids: list[Any], param: str) -> list[int]:
        """Token ids that the request brought. Raises BadRequest, ContextLengthExceeded."""
        return self._checked(body.token_ids(ids, len(self.tokenizer), param), param)

    def vectors(self, texts: Sequence[list[int]], is_abandoned: Callable[[], bool]) -> Vectors:
        """One vector for each text. Raises ApiError."""
        job = TextJob(texts, is_abandoned)
        self.queue.submit(job)
        try:
            return job.wait()
        finally:
            self.queue.release()

    def close(self) -> None:
        self.queue.close()

    def _checked(self, ids: list[int], param: str) -> list[int]:
        if not ids:
            raise BadRequest(f"'{param}' has no tokens", param)
        if len(ids) > self.max_tokens:
            raise ContextLengthExceeded(len(ids), self.max_tokens, param)
        return ids


Engine = GeneratingEngine | VectorEngine
