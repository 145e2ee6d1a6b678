"""The documents say what the program reads, and lead somewhere."""

import json
import re
from dataclasses import fields

import pytest

from solarhost.backends.huggingface import huggingface_backends
from solarhost.backends.llamacpp import LlamaCpp
from solarhost.backends.llamacpp_config import LlamaCppConfig
from solarhost.backends.registry import Backends
from solarhost.jobs.definitions import parse
from solarhost.settings import Settings, document
from tests.documents import PAGES, ROOT, blocks, script

# Programs whose name at the start of a line makes it a command, outside of fences.
COMMANDS = "solar-host|curl|pip|python3?|docker|systemctl|git|jq|eval|export|cd|sudo|apt-get"


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
def test_every_command_is_run_by_a_test_or_says_why_not(page):
    """Put `<!-- run -->` or `<!-- not run: WHY -->` right above a block (`tests/documents.py`)."""
    unmarked = [
        block.text
        for block in blocks(page)
        if block.is_shell and not block.runs and not re.fullmatch(r"not run: .{10,}", block.marker)
    ]
    assert unmarked == []
    assert script(page) is not None  # whose markers are all known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_in_a_block_that_is_not_a_shell(page):
    indented = re.findall(rf"^ {{4}}\$? ?((?:{COMMANDS}) .*)$", page.read_text(), re.MULTILINE)
    inside = [line for block in blocks(page) for line in block.text.splitlines()]
    others = [
        line
        for block in blocks(page)
        if not block.is_shell
        for line in block.text.splitlines()
        if re.match(rf"\$? ?(?:{COMMANDS}) ", line)
    ]
    assert [line for line in indented if f"    {line}" not in inside] + others == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [page.name for page in PAGES[1:] if page.name != "index.md"]
    assert [page for page in pages if f"({page})" not in index] == []


def test_every_line_on_security_names_tests_that_there_are():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)\(", tests, re.MULTILINE))
    page = (ROOT / "docs" / "security.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    claims = [row for row in rows if row[-2].strip() != "test"]
    assert len(claims) > 40
    assert [row for row in claims if not re.fullmatch(r"( `test_\w+`,?)+ ", row[-2])] == []
    assert set(re.findall(r"`(test_\w+)`", page)) - known == set()


def test_every_example_of_a_config_or_job_is_valid():
    """Those in blocks of JSON; an `…` in one stands for what is left out, so it is no example."""
    backends = Backends([LlamaCpp(None), *huggingface_backends(Settings())])
    whole = [block.text for page in PAGES for block in blocks(page) if _is_whole_json(block)]
    examples = [json.loads(text) for text in whole]
    configs = [one.get("config", one) for one in examples if isinstance(one, dict)]
    warnings = [
        warning for config in configs if "backend_type" in config for warning in backends.check(config)[1]
    ]
    jobs = [parse(one) for one in configs if "steps" in one]
    assert warnings == []
    assert jobs
    assert len([config for config in configs if "backend_type" in config]) >= 2


def _is_whole_json(block):
    return block.language == "json" and "…" not in block.text and "\n{" not in block.text
