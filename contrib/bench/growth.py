"""How time and memory grow with what there is: a curve for each measure, and its exponent as the figure.

An exponent of 1 is growth in proportion, 0 is none. It is that of the curve's upper end, where what
is fixed hides least of what grows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from contrib.bench.figures import Figure, number

FITTED = 3  # points, the largest sizes
IN_PROPORTION = 1.15  # what has to be read or answered whole; the rest is noise
UNNOTICED = {"ms": 5.0}  # by unit: less counts as this much, since nobody feels it, and any load makes it


@dataclass
class Curve:
    """One measure at growing sizes.

    Args:
        what: for people, such as `GET /instances`.
        at_most: the exponent that it may have.
    """

    name: str
    what: str
    unit: str
    at_most: float
    points: list[tuple[float, float]] = field(default_factory=list)

    def figure(self) -> Figure:
        ends = " to ".join(f"{number(value)}" for _, value in (self.points[0], self.points[-1]))
        return Figure(
            name=self.name,
            value=exponent(self.points, UNNOTICED.get(self.unit, 0.0)),
            unit="as exponent",
            at_most=self.at_most,
            note=f"{self.what}, {ends} {self.unit}",
            points=tuple(self.points),
        )


class Growth:
    """The curves over the sizes of one thing."""

    def __init__(self, subject: str):
        self._subject = subject
        self._curves: dict[str, Curve] = {}

    def curve(self, name: str, what: str, unit: str, at_most: float) -> None:
        self._curves[name] = Curve(f"{self._subject}_{name}", what, unit, at_most)

    def add(self, size: float, **values: float) -> None:
        """What was measured at a size, by the names of the curves."""
        for name, value in values.items():
            self._curves[name].points.append((size, value))

    def figures(self) -> Iterator[Figure]:
        """Of the curves that have two points at least."""
        yield from (curve.figure() for curve in self._curves.values() if len(curve.points) > 1)


def exponent(points: Sequence[tuple[float, float]], least: float = 0.0) -> float:
    """The slope of the largest sizes on logarithmic axes, by least squares.

    Args:
        least: a smaller value counts as this one.
    """
    last = [(math.log(size), math.log(max(value, least))) for size, value in sorted(points)[-FITTED:]]
    middle_x, middle_y = (sum(values) / len(last) for values in zip(*last, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in last)
    return float(sum((x - middle_x) * (y - middle_y) for x, y in last) / spread)
