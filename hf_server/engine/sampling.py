"""Choosing the next token of each row of a batch."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from hf_server.generation import Sampling, TokenLogprob

_HEAD = 256  # top_p is nearly always reached within so many of the likeliest tokens


class TokenChooser:
    """Chooses the tokens of one answer; its random numbers depend on nothing but its seed."""

    def __init__(self, sampling: Sampling, index: int):
        self.sampling = sampling
        self.index = index
        seed = None if sampling.seed is None else f"{sampling.seed}:{index}"
        self._random = Random(seed)  # noqa: S311 - not for secrets
        self._counts: Counter[int] = Counter()

    @property
    def is_plain_greedy(self) -> bool:
        """True when the likeliest token is all that is asked for."""
        sampling = self.sampling
        return sampling.temperature == 0 and sampling.logprobs is None and not self._adjusts

    @property
    def _adjusts(self) -> bool:
        sampling = self.sampling
        return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.logit_bias)

    def choose(self, logits: Tensor) -> tuple[int, TokenLogprob | None]:
        """The next token.

        Args:
            logits: float [vocabulary].

        Returns:
            the token, and its log probability under the model itself where the request asks for it.
        """
        adjusted = self._adjust(logits) if self._adjusts else logits
        token = self._pick(adjusted.float())
        self._counts[token] += 1
        if self.sampling.logprobs is None:
            return token, None
        return token, _logprob(logits.float(), token, self.sampling.logprobs)

    def _adjust(self, logits: Tensor) -> Tensor:
        """Apply `logit_bias`, then the penalties: presence once, frequency for each time a token came."""
        logits = logits.clone()
        for token, bias in self.sampling.logit_bias.items():
            logits[token] += bias
        if self._counts:
            tokens = torch.tensor(list(self._counts), device=logits.device)
            counts = torch.tensor(list(self._counts.values()), dtype=logits.dtype, device=logits.device)
            logits[tokens] -= self.sampling.presence_penalty + self.sampling.frequency_penalty * counts
        return logits

    def _pick(self, logits: Tensor) -> int:
        sampling = self.sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / sampling.temperature, dim=-1, dtype=torch.float64)
        if sampling.top_p < 1:
            probabilities, tokens = _nucleus(probabilities, sampling.top_p)
            return int(tokens[_draw(probabilities, self._random.random())])
        return _draw(probabilities, self._random.random())


def choose_tokens(choosers: Sequence[TokenChooser], logits: Tensor) -> list[tuple[int, TokenLogprob | None]]:
    """Choose for each row; rows that want no more than the likeliest token share one operation.

    Args:
        choosers: one a row.
        logits: float [rows, vocabulary].
    """
    greedy = logits.argmax(dim=-1).tolist() if any(c.is_plain_greedy for c in choosers) else []
    return [
        (greedy[row], None) if chooser.is_plain_greedy else chooser.choose(logits[row])
        for row, chooser in enumerate(choosers)
    ]


def _nucleus(probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest tokens whose probabilities reach `top_p`, likeliest first.

    Source: Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, section 3.1.
    """
    head = min(_HEAD, len(probabilities))
    values, tokens = probabilities.topk(head)
    if head < len(probabilities) and float(values.sum()) < top_p:
        values, tokens = probabilities.sort(descending=True)
    before = values.cumsum(0) - values
    kept = int((before < top_p).sum())
    kept = max(kept, 1)  # top_p 0 keeps the likeliest
    return values[:kept], tokens[:kept]


def _draw(probabilities: Tensor, uniform: float) -> int:
    """The index at which the cumulated probabilities pass `uniform` of their sum."""
    cumulated = probabilities.cumsum(0)
    target = uniform * float(cumulated[-1])
    found = int(torch.searchsorted(cumulated, target, right=True))
    return min(found, len(probabilities) - 1)


def _logprob(logits: Tensor, token: int, alternatives: int) -> TokenLogprob:
    logprobs = torch.log_softmax(logits, dim=-1)
    values, tokens = logprobs.topk(alternatives) if alternatives else (logprobs[:0], logprobs[:0])
    pairs = tuple((int(t), v) for t, v in zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), pairs)
