"""Exponents of growth curves."""

import pytest

from contrib.bench.growth import Growth, exponent


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_power(power):
    assert exponent([(size, 3 * size**power) for size in (1, 10, 50, 200)]) == pytest.approx(power)


def test_what_is_fixed_hides_little_at_the_upper_end():
    points = [(size, 10.0 + size) for size in (1, 10, 100, 1000, 10_000)]
    assert exponent(points) == pytest.approx(1.0, abs=0.05)


def test_each_curve_becomes_a_figure_with_its_points():
    growth = Growth("growth_logs")
    growth.curve("read", "GET logs", "ms", 0.2)
    growth.curve("once", "measured once", "ms", 0.2)
    growth.add(1, read=20.0, once=1.0)
    growth.add(10, read=200.0)
    (figure,) = growth.figures()
    assert (figure.name, figure.points, figure.is_met) == (
        "growth_logs_read",
        ((1, 20.0), (10, 200.0)),
        False,
    )
    assert figure.value == pytest.approx(1.0)
    assert figure.note == "GET logs, 20 to 200 ms"


def test_what_nobody_notices_is_no_growth():
    growth = Growth("growth_logs")
    growth.curve("read", "GET logs", "ms", 0.2)
    growth.curve("memory", "memory", "MiB", 0.2)
    for size, value in ((1, 0.5), (10, 4.9), (100, 1.0), (1000, 2.0)):
        growth.add(size, read=value, memory=value)
    read, memory = growth.figures()
    assert (read.value, read.points[0]) == (0.0, (1, 0.5))
    assert memory.value != 0.0
