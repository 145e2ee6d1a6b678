"""What comes from outside, almost right or not at all."""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

# What may stand where a number is expected.
digits = st.sampled_from(
    [
        "0",
        "1.5",
        "-1",
        "inf",
        "-inf",
        "nan",
        "1e999",
        "5e-324",
        "1e308",
        "9" * 5000,
        "²",
        "٣",
        "0x1",
        "1_0",
        "",
    ]
)
texts = st.text(st.characters(), max_size=20) | digits  # lone surrogates too: JSON can hold them
numbers = st.one_of(
    st.integers(),
    st.sampled_from([-1, 0, 2**31, 2**63, 10**30, 10**400]),
    st.floats(),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
any_json = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=10,
)


def paths_in(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside `value`, itself first."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [here] + [path for key in keys for path in paths_in(value[key], (*here, key))]


@st.composite
def mutated(draw: st.DrawFn, document: Any, strange: st.SearchStrategy[Any] = any_json) -> Any:
    """`document` with some of its values left out or replaced by something else."""
    changed = [deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        *way, last = 0, *draw(st.sampled_from(paths_in(changed[0])))
        place: Any = changed
        for key in way:
            place = place[key]
        if isinstance(place, dict) and draw(st.booleans()):
            del place[last]
        else:
            place[last] = deepcopy(draw(strange))  # a sample is the same object each time
    return changed[0]


@st.composite
def altered(draw: st.DrawFn, line: str) -> str:
    """A line with a number of it replaced, cut short, or with something in its middle."""
    places = [place for place, letter in enumerate(line) if letter.isdigit()]
    at = draw(st.sampled_from(places or [0]))
    match draw(st.sampled_from(["number", "cut", "insert"])):
        case "number":
            rest = line[at:].lstrip("0123456789.")
            return line[:at].rstrip("0123456789.") + draw(digits) + rest
        case "cut":
            return line[:at]
        case _:
            return line[:at] + draw(st.text(max_size=10)) + line[at:]
