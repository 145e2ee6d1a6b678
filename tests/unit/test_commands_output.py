"""What people read of the command line."""

import pytest

from solarhost.commands.output import cell


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), ("", "-"), ([], "-"), (["0", "1"], "0, 1"), (False, "no"), (True, "yes"), (0, "0")],
)
def test_a_cell_shows_no_python(value, shown):
    assert cell(value).plain == shown
