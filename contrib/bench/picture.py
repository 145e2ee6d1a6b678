"""The figures as pictures: bars against limits and the peer, and a plot for each thing that grows."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from contrib.bench.figures import Figure, number
from contrib.bench.results import Outcome

MET, MISSED, PEER = "#2a7f62", "#c0392b", "#2b5d8a"
SHOWN_UP_TO = 1.5  # of a limit; longer bars are cut
INCHES_A_BAR = 0.3


def draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write `figures.png`, and `NAME.png` for each bench that yields curves."""
    figures = [figure for outcome in outcomes for figure in outcome.figures if not figure.points]
    limited = [figure for figure in figures if figure.limit and not figure.is_of_peer]
    of_peer = [figure for figure in figures if figure.is_of_peer]
    if limited or of_peer:
        _bars(limited, of_peer).savefig(folder / "figures.png", dpi=110)
    for outcome in outcomes:
        curves = [figure for figure in outcome.figures if figure.points]
        if curves:
            _growth(curves).savefig(folder / f"{outcome.bench}.png", dpi=110)


def _bars(limited: Sequence[Figure], of_peer: Sequence[Figure]) -> Picture:
    heights = [len(limited) + 3, len(of_peer) + 3]
    picture = Picture(figsize=(10, INCHES_A_BAR * sum(heights) + 0.5), layout="constrained")
    above, below = picture.subplots(2, 1, height_ratios=heights)
    _against_limits(above, limited)
    _against_peer(below, of_peer)
    return picture


def _against_limits(axes: Axes, figures: Sequence[Figure]) -> None:
    shares = [share_of_limit(figure) for figure in figures]
    _named_bars(axes, figures, [min(share, SHOWN_UP_TO) for share in shares])
    for row, figure in enumerate(figures):
        words = f"{number(figure.value)} {figure.unit} ({figure.limit})"
        axes.text(SHOWN_UP_TO + 0.02, row, words, va="center", fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlim(0, SHOWN_UP_TO + 1)
    axes.set_title("Share of its limit that each figure takes: left of the line it is met", fontsize=9)


def _against_peer(axes: Axes, figures: Sequence[Figure]) -> None:
    gains = [figure.value if figure.at_least else 1 / figure.value for figure in figures]
    axes.set_xscale("log")
    _named_bars(axes, figures, gains, color=PEER)
    for row, (figure, gain) in enumerate(zip(figures, gains, strict=True)):
        axes.text(gain, row, f" {number(gain)}", va="center", fontsize=7)
        needed = figure.at_least or 1 / (figure.at_most or 1)
        axes.plot([needed, needed], [row - 0.4, row + 0.4], color=MET if figure.is_met else MISSED)
    axes.set_title("Times better than the peer in the same run; the short line is the least", fontsize=9)


def _named_bars(axes: Axes, figures: Sequence[Figure], lengths: Sequence[float], color: str = "") -> None:
    colors = [color or (MET if figure.is_met else MISSED) for figure in figures]
    axes.barh(range(len(figures)), lengths, color=colors, height=0.7)
    axes.set_yticks(range(len(figures)), [figure.name for figure in figures], fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)


def share_of_limit(figure: Figure) -> float:
    """1 is exactly the limit and less is better, whichever way it bounds."""
    if figure.at_most is not None:
        if figure.at_most <= 0:
            return 0.0 if figure.is_met else float("inf")
        return max(0.0, figure.value / figure.at_most)
    assert figure.at_least is not None
    return figure.at_least / figure.value if figure.value > 0 else float("inf")


def _growth(curves: Sequence[Figure]) -> Picture:
    """Each curve in multiples of its first value, so that all share one pair of logarithmic axes."""
    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.subplots()
    heights = [1.0, 3.0]
    for curve in curves:
        first = curve.points[0][1]
        grown = [(size, value / first) for size, value in curve.points]
        heights += [height for _, height in grown]
        label = f"{curve.note} (exponent {number(curve.value)})"
        axes.plot(*zip(*grown, strict=True), marker="o", markersize=3, label=label)
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    axes.plot(sizes, [size / sizes[0] for size in sizes], color="grey", linestyle=":", label="in proportion")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(heights) / 2, max(heights) * 2)  # the dotted line may leave the picture
    axes.set_xlabel(curves[0].name.split("_")[1], fontsize=8)
    axes.set_ylabel("times the first value", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7)
    return picture
