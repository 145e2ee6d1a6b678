"""A generating model: one call for a forward pass, whatever the architecture names its arguments."""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from hf_server.generation import Prompt


class LanguageModel:
    """Forward passes of one model. Used by the scheduler's thread alone, once it runs.

    Args:
        model: a causal or image-text-to-text model of transformers, on its device, in eval mode.
        end_tokens: the tokens that end an answer.
        context: most tokens of a prompt and its answer.
    """

    def __init__(self, model: Any, end_tokens: frozenset[int], context: int):
        self._model = model
        self.end_tokens = end_tokens
        self.context = context
        self.device: torch.device = model.device
        arguments = inspect.signature(model.forward).parameters
        # Newer transformers call it `cache`; models that bring their own code keep the older name.
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in arguments else {}
        self.can_share = _can_share(model)

    def new_cache(self) -> Cache:
        """An empty cache for one sequence; a plain one where sequences can be put side by side."""
        return DynamicCache() if self.can_share else DynamicCache(config=self._model.config)

    def forward(
        self, ids: Tensor, cache: Cache, positions: Tensor | None, mask: Tensor | None, **extras: Any
    ) -> Tensor:
        """The logits after the last token of each row.

        Args:
            ids: int [rows, tokens], what follows on the tokens in `cache`, which takes them in.
            positions: int [rows, tokens], None to leave them to the model.
            mask: int [rows, tokens in the cache + tokens], 1 for a token; None without padding.
            extras: what a processor made of images.

        Returns:
            float [rows, vocabulary].
        """
        arguments: dict[str, Any] = {self._cache_argument: cache, **self._last_only, **extras}
        if positions is not None:
            arguments["position_ids"] = positions
        output = self._model(input_ids=ids, attention_mask=mask, use_cache=True, **arguments)
        logits: Tensor = output.logits[:, -1]
        return logits

    def prefill(self, prompt: Prompt, begin: int, end: int, cache: Cache) -> Tensor:
        """Take a prompt's tokens from `begin` to `end` into `cache`; the logits after them, [1, vocab]."""
        ids = torch.tensor([prompt.ids[begin:end]], device=self.device)
        if prompt.extras:  # with images: in one piece, and the model finds its own positions
            extras = {name: _on(value, self.device) for name, value in prompt.extras.items()}
            return self.forward(ids, cache, None, torch.ones_like(ids), **extras)
        positions = torch.arange(begin, end, device=self.device)[None]
        return self.forward(ids, cache, positions, None)

    def position_offset(self, prompt: Prompt) -> int:
        """How far images shifted the positions of the prompt that was just prefilled."""
        deltas = getattr(getattr(self._model, "model", None), "rope_deltas", None)
        return int(deltas[0]) if prompt.extras and deltas is not None else 0


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _can_share(model: Any) -> bool:
    """True when all the model remembers of a sequence is keys and values of its tokens.

    Recurrent layers and attention in fixed chunks keep more than that, or count from the first column.
    """
    text_config = model.config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(text_config, "layer_types", None) or ()):
        return False
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
