"""The file `.env`: what can't be understood is said, not passed over."""

from pathlib import Path

import pytest

from solarhost.errors import SettingsError
from solarhost.settings import read


def test_a_line_that_makes_no_sense_stops_the_start(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text('# a host\nHOST=127.0.0.1\nAPI_KEY="never-closed\n')
    with pytest.raises(SettingsError, match="line 3") as caught:
        read(env_file)
    assert "never-closed" not in str(caught.value), "it may be a secret"
