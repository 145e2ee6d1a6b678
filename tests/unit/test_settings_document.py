"""The page on settings says what the program reads."""

from dataclasses import fields
from pathlib import Path

from solarhost.settings import Settings, document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_page_on_settings_is_up_to_date():
    """`make docs` writes it anew."""
    assert PAGE.read_text() == document()


def test_every_setting_is_explained():
    for setting in fields(Settings):
        assert len(setting.metadata["doc"]) > 10, setting.name
        assert f"| `{setting.name.upper()}` |" in document()
