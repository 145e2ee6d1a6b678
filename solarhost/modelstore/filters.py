"""Which files of a repository a request wants, by name patterns as the hub's own tools read them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

Filters = Sequence[str] | None  # None: every file


def matches(name: str, filters: Filters) -> bool:
    """True when the file is kept: there are no filters, or one matches its path; `*` matches `/` too."""
    return filters is None or any(
        fnmatchcase(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in filters
    )


def covers(have: Filters, asked: Filters) -> bool:
    """True when files pulled with `have` include those that `asked` wants, whatever the repository holds."""
    return have is None or (asked is not None and set(asked) <= set(have))


def union(first: Filters, second: Filters) -> Filters:
    if first is None or second is None:
        return None
    return sorted({*first, *second})


def literal(name: str) -> str:
    """The pattern that matches this name alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
