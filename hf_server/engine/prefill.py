"""A prompt on its way through the model, piece by piece so that running answers are not held up."""

from torch import Tensor

from hf_server.engine.language import LanguageModel
from hf_server.engine.prefixes import Prefixes
from hf_server.generation import Generation


class Prefill:
    """Computes the keys and values of one prompt, less what is known of its beginning."""

    def __init__(self, model: LanguageModel, generation: Generation, prefixes: Prefixes):
        self.generation = generation
        self._model = model
        self._prompt = generation.prompt
        # Pieces need positions that we know and a memory that can be continued at any token.
        self._in_pieces = model.can_share and not self._prompt.extras
        if self._in_pieces:
            self.cache, self._done = prefixes.take(self._prompt.ids)
        else:
            self.cache, self._done = model.new_cache(), 0
        generation.cached_tokens = self._done
        self.position_offset = 0
        self.logits: Tensor | None = None  # float [1, vocabulary], once the prompt is through

    def advance(self, budget: int) -> int:
        """Compute up to `budget` tokens, all of them where they can't be cut; returns how many."""
        ids = self._prompt.ids
        end = min(len(ids), self._done + budget) if self._in_pieces else len(ids)
        count = end - self._done
        logits = self._model.prefill(self._prompt, self._done, end, self.cache)
        self._done = end
        if end == len(ids):
            self.logits = logits
            self.position_offset = self._model.position_offset(self._prompt)
        return count
