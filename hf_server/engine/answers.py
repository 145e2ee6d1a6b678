"""One answer while it is generated: its tokens, its text, and whether it has ended."""

from hf_server.engine.sampling import TokenChooser
from hf_server.engine.text import Detokenizer, StopScanner
from hf_server.generation import Decode, Delta, FinishReason, Generation, TokenLogprob


class Answer:
    """Takes tokens in and puts what is certain into the request's outbox. Used by one thread."""

    def __init__(self, generation: Generation, index: int, decode: Decode):
        self.generation = generation
        self.chooser = TokenChooser(generation.sampling, index)
        self.tokens: list[int] = []
        self._index = index
        self._decode = decode
        # Text is made as it comes only where somebody looks at it before the end.
        self._live = generation.streamed or bool(generation.sampling.stop)
        self._detokenizer = Detokenizer(decode)
        self._scanner = StopScanner(generation.sampling.stop)
        self._text: list[str] = []  # not yet sent
        self._logprobs: list[TokenLogprob] = []  # not yet sent

    def accept(self, token: int, logprob: TokenLogprob | None, end_tokens: frozenset[int]) -> bool:
        """Take the next token; True when the answer has ended with it."""
        self.tokens.append(token)
        self.generation.generated_tokens += 1
        if token in end_tokens:
            return self._finish("stop")
        if logprob is not None:
            self._logprobs.append(logprob)
        if self._live:
            piece, stopped = self._scanner.push(self._detokenizer.push(token))
            self._text.append(piece)
            if stopped:
                return self._finish("stop")
        if len(self.tokens) >= self.generation.sampling.max_tokens:
            return self._finish("length")
        if self.generation.streamed:
            self._send(None)
        return False

    def _finish(self, reason: FinishReason) -> bool:
        if not self._live:
            shown = self.tokens[:-1] if reason == "stop" else self.tokens
            self._text.append(self._decode(shown))
        else:
            piece, stopped = self._scanner.finish(self._detokenizer.finish())
            self._text.append(piece)
            reason = "stop" if stopped else reason
        self._send(reason)
        return True

    def _send(self, reason: FinishReason | None) -> None:
        text = "".join(self._text)
        if text or self._logprobs or reason:
            delta = Delta(self.generation.first_index + self._index, text, tuple(self._logprobs), reason)
            self._text, self._logprobs = [], []
            self.generation.outbox.put(delta)
