"""Models that turn a text into one vector: embeddings and classification scores."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_server.texts import Vectors


class Encoder:
    """One pass over several texts; subclasses say what becomes of it. Used by one thread.

    Args:
        model: a model of transformers, on its device, in eval mode.
        tokenizer: says how to pad; None as its pad token means that only texts of one length go together.
    """

    def __init__(self, model: Any, tokenizer: Any):
        self._model = model
        self.can_pad = tokenizer.pad_token_id is not None
        self._pad_token = tokenizer.pad_token_id or 0
        self._pad_left = tokenizer.padding_side == "left"

    def encode(self, texts: Sequence[list[int]]) -> Vectors:
        """One vector for each list of token ids."""
        width = max(len(ids) for ids in texts)
        rows, masks = [], []
        for ids in texts:
            padding = width - len(ids)
            pad, real = [self._pad_token] * padding, [1] * len(ids)
            rows.append(pad + ids if self._pad_left else ids + pad)
            masks.append([0] * padding + real if self._pad_left else real + [0] * padding)
        device = self._model.device
        mask = torch.tensor(masks, device=device)
        vectors: Vectors = self._vectors(torch.tensor(rows, device=device), mask).float().cpu().numpy()
        return vectors

    def _vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


class Embedder(Encoder):
    """The mean of a text's last hidden states."""

    def _vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        return mean_pool(hidden.float(), mask)


class Classifier(Encoder):
    """The score of each label: together 1, or each for itself where a text can have several labels."""

    def __init__(self, model: Any, tokenizer: Any):
        super().__init__(model, tokenizer)
        config = model.config
        self._each = config.problem_type == "multi_label_classification" or config.num_labels == 1

    def _vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self._model(input_ids=ids, attention_mask=mask).logits.float()
        scores: Tensor = logits.sigmoid() if self._each else logits.softmax(dim=-1)
        return scores


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average each text's token vectors, leaving padding out.

    Args:
        hidden: float [texts, tokens, width], the last hidden state.
        mask: int [texts, tokens], 1 for a token, 0 for padding.

    Returns:
        float [texts, width].

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3 (MEAN strategy).
    """
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
