"""The pages of the documentation, and the commands in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(
    r"^(?:<!-- (?P<marker>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
SHELLS = ("sh", "bash", "shell", "console")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and the comment right above it (`<!-- marker -->`), if there is one.

    The marker of a shell block is one of

        run             a test runs it, in one shell with the page's other ones
        run: fails      likewise, and it has to fail
        run: goes on    likewise: it is the agent in the foreground, and is left running
        not run: WHY
    """

    language: str
    text: str
    marker: str

    @property
    def is_shell(self) -> bool:
        return self.language in SHELLS

    @property
    def runs(self) -> bool:
        return self.marker.split(":")[0] == "run"


def blocks(page: Path) -> Iterator[Block]:
    for found in _FENCE.finditer(page.read_text()):
        yield Block(found["language"], found["text"], found["marker"] or "")


def script(page: Path) -> str:
    """What a reader types who follows the page: all blocks that are run, in order."""
    return "\n".join(_typed(block) for block in blocks(page) if block.is_shell and block.runs)


def _typed(block: Block) -> str:
    match block.marker:
        case "run":
            return block.text
        case "run: fails":
            return f"if ( {block.text} ); then echo 'this should have failed'; exit 1; fi\n"
        case "run: goes on":
            return "systemctl start solar-host\n"  # as a service, since a script has one terminal
    raise ValueError(f"what is <!-- {block.marker} -->?")
