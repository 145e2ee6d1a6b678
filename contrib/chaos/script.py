"""What is done in a run, and in which order: a function of the seed alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

MEAN_PAUSE_S = 0.3


@dataclass(frozen=True)
class Step:
    """One action; `chance` makes its choices, so that they are the same in every run of the seed."""

    number: int
    pause_s: float  # before it
    what: str
    chance: Random


def script(seed: int, deck: Mapping[str, int]) -> Iterator[Step]:
    """Steps without end.

    Args:
        deck: how often each action is in the deck. It is dealt out to the last card before it is
            shuffled again, so that even a short run sees all of them.
    """
    shuffle = Random(seed)
    cards = [what for what, count in sorted(deck.items()) for _ in range(count)]
    number = 0
    while True:
        shuffle.shuffle(cards)
        for what in cards:
            number += 1
            yield Step(number, shuffle.expovariate(1 / MEAN_PAUSE_S), what, Random(f"{seed}/{number}"))
