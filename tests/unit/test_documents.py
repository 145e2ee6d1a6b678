"""The documents say what the program reads, and lead somewhere."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from solarhost.backends.llamacpp_config import LlamaCppConfig
from solarhost.settings import Settings, document

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [page.name for page in PAGES[1:] if page.name != "index.md"]
    assert [page for page in pages if f"({page})" not in index] == []
