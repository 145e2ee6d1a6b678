"""Models that turn a text into one vector: embeddings and classification scores."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_server.texts import Vectors

Pass = Callable[[Tensor, Tensor], Tensor]  # ids and mask, int [texts, tokens], to float [texts, width]


class Embedder(nn.Module):
    """The mean of a text's last hidden states."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return mean_pool(hidden.float(), mask)


class Classifier(nn.Module):
    """The score of each label: together 1, or each for itself where a text can have several labels."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        config = model.config
        self._each = config.problem_type == "multi_label_classification" or config.num_labels == 1

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.model(input_ids=ids, attention_mask=mask).logits.float()
        scores: Tensor = logits.sigmoid() if self._each else logits.softmax(dim=-1)
        return scores


class Encoder:
    """Texts to vectors, several in one pass. Safe from any thread as far as the model is.

    Args:
        vectors: an Embedder or a Classifier around a model on its device, in eval mode.
        tokenizer: says how to pad; None as its pad token means that only texts of one length go together.
    """

    def __init__(self, vectors: Embedder | Classifier, tokenizer: Any):
        self.vectors = vectors.eval()
        self._device = vectors.model.device
        self.can_pad = tokenizer.pad_token_id is not None
        self._pad_token = tokenizer.pad_token_id or 0
        self._pad_left = tokenizer.padding_side == "left"
        self._quick: Pass = self.vectors
        self._quick_width = 0

    def use(self, quick: Pass, width: int) -> None:
        """Let `quick` do the passes of texts of up to `width` tokens."""
        self._quick, self._quick_width = quick, width

    def is_quick(self, width: int) -> bool:
        """True when texts of so many tokens take the quick pass."""
        return width <= self._quick_width

    def encode(self, texts: Sequence[list[int]]) -> Vectors:
        """One vector for each list of token ids."""
        ids, mask = self.padded(texts)
        run = self._quick if self.is_quick(ids.shape[1]) else self.vectors
        vectors: Vectors = run(ids, mask).float().cpu().numpy()
        return vectors

    def padded(self, texts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, int [texts, tokens]."""
        width = max(len(ids) for ids in texts)
        rows, masks = [], []
        for ids in texts:
            padding = width - len(ids)
            pad, real = [self._pad_token] * padding, [1] * len(ids)
            rows.append(pad + ids if self._pad_left else ids + pad)
            masks.append([0] * padding + real if self._pad_left else real + [0] * padding)
        return torch.tensor(rows, device=self._device), torch.tensor(masks, device=self._device)


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
