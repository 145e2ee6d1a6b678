"""Keys and values of ended answers, for prompts that begin alike: the next turn of a chat, above all."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from transformers.cache_utils import DynamicCache

from hf_server.engine.batch import KeysValues

_WORTH_IT = 16  # tokens; shorter beginnings are computed anew


@dataclass(frozen=True, slots=True)
class _Entry:
    ids: list[int]
    layers: KeysValues


class Prefixes:
    """The sequences used last, up to `budget` tokens together. Used by one thread."""

    def __init__(self, budget: int):
        self._budget = budget
        self._entries: list[_Entry] = []  # used last: last
        self.tokens = 0

    def put(self, ids: Sequence[int], layers: KeysValues) -> None:
        """Remember a sequence; a shorter one that it begins with goes, and the oldest beyond the budget."""
        if not _WORTH_IT <= len(ids) <= self._budget:
            return
        entry = _Entry(list(ids), layers)
        self._entries = [old for old in self._entries if _common(old.ids, entry.ids) < len(old.ids)]
        self._entries.append(entry)
        self.tokens = sum(len(old.ids) for old in self._entries)
        while self.tokens > self._budget:
            self.tokens -= len(self._entries.pop(0).ids)

    def take(self, ids: Sequence[int]) -> tuple[DynamicCache, int]:
        """A cache that holds the longest known beginning of `ids`, and how many tokens that is.

        The last token is always left to compute, since its logits are what the prompt is for.
        """
        cache = DynamicCache()
        known, best = 0, None
        for entry in self._entries:
            common = min(_common(entry.ids, ids), len(ids) - 1)
            if common > known:
                known, best = common, entry
        if best is None or known < _WORTH_IT:
            return cache, 0
        self._entries.remove(best)
        self._entries.append(best)
        for layer, (keys, values) in enumerate(best.layers):
            cache.update(keys[:, :, :known], values[:, :, :known], layer)
        return cache, known

    def clear(self) -> None:
        self._entries, self.tokens = [], 0


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the beginning that both share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
