"""The keys and values of all running answers, side by side, so that one forward pass serves them all.

Each row is one answer. Rows are aligned at their ends: a row of 30 tokens beside one of 100 begins at
column 70, and what lies before it is masked. So the next token of every row goes to the same column, and
attention that looks at distances between columns (sliding windows) needs no correction.

            first          end
    row 0     |k k k k k k k|
    row 1     |. . . k k k k|
    row 2     |. . . . . k k|
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_COLUMNS = 64  # buffers grow by so many columns


@dataclass(slots=True)
class _Span:
    """The part of the buffers in use, shared by all layers."""

    rows: int = 0
    first: int = 0
    end: int = 0


class _RowsLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffers, float [rows, heads, columns, width]; a pass writes one column at `end`."""

    is_sliding = False

    def __init__(self, span: _Span):
        super().__init__()
        self._span = span
        self.drop()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: rows are added before a pass."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        rows, first, end = self._span.rows, self._span.first, self._span.end
        self.keys[:rows, :, end] = key_states[:, :, 0]
        self.values[:rows, :, end] = value_states[:, :, 0]
        return self.keys[:rows, :, first : end + 1], self.values[:rows, :, first : end + 1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._span.end - self._span.first

    def get_max_length(self) -> int:
        return -1

    def drop(self) -> None:
        """Give the buffers back."""
        self.keys = torch.empty(0)
        self.values = torch.empty(0)

    def resize(self, rows: int, columns: int, like: CacheLayerMixin) -> None:
        """Grow to at least `rows` and `columns`; what is in use keeps its place."""
        self.keys = _resized(self.keys, rows, columns, like.keys)
        self.values = _resized(self.values, rows, columns, like.values)

    def shift(self, by: int) -> None:
        """Move the columns in use by `by`, to the right if positive."""
        span = self._span
        for buffer in (self.keys, self.values):
            moved = buffer[: span.rows, :, span.first : span.end].clone()
            buffer[: span.rows, :, span.first + by : span.end + by] = moved

    def write(self, row: int, copies: int, layer: CacheLayerMixin) -> None:
        """Put one sequence into `copies` rows from `row`, ending at the common end."""
        columns = slice(self._span.end - layer.keys.shape[2], self._span.end)
        self.keys[row : row + copies, :, columns] = layer.keys
        self.values[row : row + copies, :, columns] = layer.values

    def move(self, source: int, target: int) -> None:
        columns = slice(self._span.first, self._span.end)
        self.keys[target, :, columns] = self.keys[source, :, columns]
        self.values[target, :, columns] = self.values[source, :, columns]


class Rows:
    """A batch that sequences join and leave between passes. Used by one thread."""

    def __init__(self, layers: int, device: torch.device):
        self._span = _Span()
        self._device = device
        self._layers = [_RowsLayer(self._span) for _ in range(layers)]
        self._starts: list[int] = []  # first column of each row
        self._offsets: list[int] = []  # position of the first token; images can shift the later ones
        self._capacity = (0, 0)  # rows, columns
        self._starts_tensor = torch.empty(0, dtype=torch.long, device=device)
        self._ends_tensor = self._starts_tensor  # position of the next token, less `end`
        self.cache = Cache(layers=self._layers)

    def __len__(self) -> int:
        return self._span.rows

    @property
    def tokens(self) -> int:
        """Columns in use, padding included, over all rows."""
        return self._span.rows * (self._span.end - self._span.first)

    def add(self, cache: Cache, copies: int, position_offset: int = 0) -> None:
        """Let a prefilled sequence join as the last `copies` rows.

        Args:
            cache: the keys and values of one sequence, [1, heads, tokens, width] a layer.
            position_offset: what to add to a token's place in the sequence to get its position.
        """
        span = self._span
        length = cache.layers[0].keys.shape[2]
        if not span.rows:
            span.first = span.end = 0
        # Either the new row is longer than the others, and they move right, or it ends where they do.
        by = max(0, length - span.end)
        self._reserve(span.rows + copies, span.end + by + 1, cache)
        if by:
            for layer in self._layers:
                layer.shift(by)
            self._starts = [start + by for start in self._starts]
            span.first, span.end = span.first + by, span.end + by
        row = span.rows
        span.rows += copies
        self._starts += [span.end - length] * copies
        self._offsets += [position_offset] * copies
        for layer, source in zip(self._layers, cache.layers, strict=True):
            layer.write(row, copies, source)
        self._settle()

    def remove(self, row: int) -> None:
        """Let a row leave; the last row takes its place."""
        last = self._span.rows - 1
        if row != last:
            for layer in self._layers:
                layer.move(last, row)
            self._starts[row], self._offsets[row] = self._starts[last], self._offsets[last]
        del self._starts[last], self._offsets[last]
        self._span.rows = last
        self._settle()

    def sequence(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of one row's keys and values, [1, heads, tokens, width] a layer."""
        columns = slice(self._starts[row], self._span.end)
        return [
            (layer.keys[row : row + 1, :, columns].clone(), layer.values[row : row + 1, :, columns].clone())
            for layer in self._layers
        ]

    def mask(self) -> Tensor | None:
        """For the next pass: int [rows, columns in use + 1], 1 for a token; None without padding."""
        span = self._span
        if all(start == span.first for start in self._starts):
            return None
        columns = torch.arange(span.first, span.end + 1, device=self._device)
        return (columns >= self._starts_tensor[:, None]).long()

    def positions(self) -> Tensor:
        """For the next pass: int [rows, 1], the position of the token that each row gets."""
        return (self._ends_tensor + self._span.end)[:, None]

    def advance(self) -> None:
        """A pass went through: its column belongs to the rows now. Makes room for the next."""
        self._span.end += 1
        if self._span.end < self._capacity[1]:
            return
        if self._span.first >= _COLUMNS:  # columns that only rows which left had used
            by = self._span.first
            for layer in self._layers:
                layer.shift(-by)
            self._starts = [start - by for start in self._starts]
            self._span.first, self._span.end = 0, self._span.end - by
            self._settle()
        else:
            self._reserve(self._span.rows, self._span.end + 1, self.cache)

    def clear(self) -> None:
        """Drop every row and the buffers."""
        self._span.rows = self._span.first = self._span.end = 0
        self._starts, self._offsets, self._capacity = [], [], (0, 0)
        for layer in self._layers:
            layer.drop()
        self._settle()

    def _reserve(self, rows: int, columns: int, like: Cache) -> None:
        have_rows, have_columns = self._capacity
        if rows > have_rows:
            have_rows = max(rows, 2 * have_rows)
        if columns > have_columns:
            have_columns = -(-columns // _COLUMNS) * _COLUMNS
        if (have_rows, have_columns) != self._capacity:
            for layer, source in zip(self._layers, like.layers, strict=True):
                layer.resize(have_rows, have_columns, source)
            self._capacity = (have_rows, have_columns)

    def _settle(self) -> None:
        """Bring what is derived from the starts up to date."""
        if not self._starts:
            self._span.first = self._span.end = 0
        else:
            self._span.first = min(self._starts)
        self._starts_tensor = torch.tensor(self._starts, dtype=torch.long, device=self._device)
        offsets = [o - start for o, start in zip(self._offsets, self._starts, strict=True)]
        self._ends_tensor = torch.tensor(offsets, dtype=torch.long, device=self._device)


def _resized(buffer: Tensor, rows: int, columns: int, like: Tensor) -> Tensor:
    # Zeros, not whatever the memory held: a masked value that isn't a number would still spoil a sum.
    grown = torch.zeros((rows, like.shape[1], columns, like.shape[3]), dtype=like.dtype, device=like.device)
    if buffer.numel():
        grown[: buffer.shape[0], :, : buffer.shape[2]] = buffer
    return grown
