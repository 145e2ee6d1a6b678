"""The documents say what the program reads, and lead somewhere."""

from dataclasses import fields
from pathlib import Path

from solarhost.backends.llamacpp_config import LlamaCppConfig
from solarhost.settings import Settings, document

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_on_settings_is_up_to_date():
    """`make docs` writes it anew."""
    assert (ROOT / "docs" / "settings.md").read_text() == document()


def test_every_setting_is_explained():
    for setting in fields(Settings):
        assert len(setting.metadata["doc"]) > 10, setting.name
        assert f"| `{setting.name.upper()}` |" in document()


def test_every_field_of_a_llamacpp_config_is_explained():
    page = (ROOT / "docs" / "llamacpp.md").read_text()
    assert [
        name for name in LlamaCppConfig().fields if name != "backend_type" and f"`{name}`" not in page
    ] == []
