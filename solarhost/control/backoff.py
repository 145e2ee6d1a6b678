"""How long to wait before the next attempt."""

import random


class Backoff:
    """Doubles from `first_s` to `longest_s`; up to half of each wait is left out at random, so that
    many hosts don't come back to a restarted control at the same moment."""

    def __init__(self, first_s: float, longest_s: float):
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next(self) -> float:
        """Seconds to wait now."""
        full = min(self._next_s, self._longest_s)
        self._next_s = min(full * 2, self._longest_s)
        return full * random.uniform(0.5, 1.0)  # noqa: S311 - no secret depends on it

    def reset(self) -> None:
        """It worked: begin with the first wait again."""
        self._next_s = self._first_s
