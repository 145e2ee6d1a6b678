"""What stands in `.env` and in the environment: it becomes settings, or is refused by its name."""

import os
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from solarhost.doubts import doubts
from solarhost.errors import SettingsError
from solarhost.settings import Settings, load
from tests.fuzz.strategies import any_json, digits

NAMES = [setting.name.upper() for setting in fields(Settings)]
SECRET = "never-shown"
HOLDS_SECRET = {
    **{setting.name.upper(): SECRET + " é" for setting in fields(Settings) if setting.metadata["secret"]},
    **dict.fromkeys(("HARBOR_URL", "HF_ENDPOINT", "SOLAR_CONTROL_URL"), f"http://u:{SECRET}@["),
}
values = st.one_of(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12),
    digits,
    any_json.map(lambda value: repr(value).replace("\0", "")),
    st.sampled_from(['"open', "http://[", "/", ".", "~", "${PORT}", "${", "unix://", "/" + "x" * 300]),
)
settings = st.sampled_from(NAMES).flatmap(
    lambda name: st.tuples(st.just(name), values | st.just(HOLDS_SECRET.get(name, "")))
)
lines = st.one_of(
    settings.map("=".join),
    st.builds("{0[0]} = {0[1]}".format, settings),
    st.text(max_size=5),
)


def check(content: bytes, environment: dict[str, str]) -> None:
    with TemporaryDirectory() as folder, patch.dict(os.environ, environment):
        env_file = Path(folder) / ".env"
        env_file.write_bytes(content)
        try:
            settings = load(env_file)
        except SettingsError as error:
            assert str(error)
            assert SECRET not in str(error)
        else:
            assert settings.accepted_keys
            doubts(settings, env_file)


@given(st.lists(lines, max_size=5).map(lambda rows: "\n".join(rows).encode("utf-8", "surrogatepass")))
def test_any_line_of_an_env_file(content: bytes) -> None:
    check(content, {})


@given(st.binary(max_size=100))
def test_any_bytes_as_an_env_file(content: bytes) -> None:
    check(content, {})


@given(st.lists(settings, max_size=4).map(dict))
def test_any_environment(environment: dict[str, str]) -> None:
    check(b"", environment)
