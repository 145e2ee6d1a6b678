"""A queue that forgets its oldest items rather than grow or make anyone wait."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from solarhost.events import Event

MAX_CHARACTERS = 8 * 1024 * 1024  # of one queue, however few its entries are


@dataclass(frozen=True, slots=True)
class Item:
    """One published event, waiting to be sent."""

    order: int  # counts up over all queues, so that they can be merged again
    published_at: str
    event: Event
    kept: bool = False  # waits for a connection, and after that for control's acknowledgement
    entries: int = 1
    characters: int = 0


class BoundedQueue:
    """At most `limit` entries. Not safe by itself: the outbox holds its lock around each call.

    Args:
        expendable: which items go first when there are too many, and don't count in `order_at`; without
            it the oldest go, and all count.
    """

    def __init__(self, limit: int, expendable: Callable[[Item], bool] | None = None):
        self._limit = limit
        self._expendable = expendable
        self._items: deque[Item] = deque()
        self._characters = 0
        self.entries = 0
        self.dropped = 0  # entries, since the start

    def put(self, item: Item) -> None:
        self._items.append(item)
        self.entries += item.entries
        self._characters += item.characters
        while self.entries > self._limit or self._characters > MAX_CHARACTERS:
            self._drop(self._first_to_go())

    def put_back(self, older: Iterable[Item]) -> None:
        """Take items that were here before all present ones to the front again."""
        for item in (*older, *self.take()):
            self.put(item)

    def take(self, before: int | None = None) -> list[Item]:
        """Remove and return all items, oldest first; or only those whose order is lower than `before`."""
        taken = []
        while self.has_before(before):
            item = self._items.popleft()
            self._uncount(item)
            taken.append(item)
        return taken

    def has_before(self, order: int | None) -> bool:
        """Would `take` give anything?"""
        return bool(self._items) and (order is None or self._items[0].order < order)

    def order_at(self, index: int) -> int | None:
        """The order of the item at `index`; None when there are not so many."""
        counted = (item.order for item in self._items if not self._is_expendable(item))
        return next(itertools.islice(counted, index, None), None)

    def clear(self) -> None:
        """Drop everything, counted."""
        self.dropped += self.entries
        self.take()

    def _first_to_go(self) -> int:
        return next((index for index, item in enumerate(self._items) if self._is_expendable(item)), 0)

    def _is_expendable(self, item: Item) -> bool:
        return self._expendable is not None and self._expendable(item)

    def _drop(self, index: int) -> None:
        item = self._items[index]
        del self._items[index]
        self._uncount(item)
        self.dropped += item.entries

    def _uncount(self, item: Item) -> None:
        self.entries -= item.entries
        self._characters -= item.characters
