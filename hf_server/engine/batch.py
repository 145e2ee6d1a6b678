"""The running answers as one batch: shared passes where the model allows it, else one after another."""

import copy
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from hf_server.engine.language import LanguageModel
from hf_server.engine.rows import Rows

KeysValues = list[tuple[Tensor, Tensor]]


class Batch(Protocol):
    """Sequences that join and leave between steps; a row's number changes when another leaves."""

    def __len__(self) -> int: ...

    def add(self, cache: Cache, copies: int, length: int, position_offset: int) -> None:
        """Let a prefilled sequence of `length` tokens join as the last `copies` rows."""

    def remove(self, row: int) -> None:
        """Let a row leave; the last row takes its place."""

    def step(self, tokens: list[int]) -> Tensor:
        """Take one token a row in; the logits after them, float [rows, vocabulary]."""

    def sequence(self, row: int) -> KeysValues | None:
        """A copy of what the row remembers, for a later prompt that begins alike; None if it can't be cut."""

    def clear(self) -> None:
        """Drop every row."""


class SharedBatch:
    """One forward pass a step for all rows."""

    def __init__(self, model: LanguageModel, layers: int):
        self._model = model
        self._rows = Rows(layers, model.device)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, cache: Cache, copies: int, length: int, position_offset: int) -> None:  # noqa: ARG002
        self._rows.add(cache, copies, position_offset)

    def remove(self, row: int) -> None:
        self._rows.remove(row)

    def step(self, tokens: list[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self._model.device)[:, None]
        logits = self._model.forward(ids, self._rows.cache, self._rows.positions(), self._rows.mask())
        self._rows.advance()
        return logits

    def sequence(self, row: int) -> KeysValues | None:
        return self._rows.sequence(row)

    def clear(self) -> None:
        self._rows.clear()


class SeparateBatch:
    """One forward pass a step and row, for models whose memory can't be put side by side."""

    def __init__(self, model: LanguageModel):
        self._model = model
        self._caches: list[Cache] = []
        self._positions: list[int] = []

    def __len__(self) -> int:
        return len(self._caches)

    def add(self, cache: Cache, copies: int, length: int, position_offset: int) -> None:
        self._caches += [cache, *(copy.deepcopy(cache) for _ in range(copies - 1))]
        self._positions += [length + position_offset] * copies

    def remove(self, row: int) -> None:
        self._caches[row], self._positions[row] = self._caches[-1], self._positions[-1]
        del self._caches[-1], self._positions[-1]

    def step(self, tokens: list[int]) -> Tensor:
        rows = []
        for row, token in enumerate(tokens):
            ids = torch.tensor([[token]], device=self._model.device)
            positions = torch.tensor([[self._positions[row]]], device=self._model.device)
            rows.append(self._model.forward(ids, self._caches[row], positions, None))
            self._positions[row] += 1
        return torch.cat(rows)

    def sequence(self, row: int) -> KeysValues | None:  # noqa: ARG002
        return None

    def clear(self) -> None:
        self._caches, self._positions = [], []
