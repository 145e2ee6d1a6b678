"""The tree is the architecture: imports run one way and stand at the top."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A part may import from its own level's earlier rows and from below, never from above.
LEVELS = [
    {"errors", "times", "shortages", "strictjson", "shapes", "__init__"},
    {"threads", "files", "settings", "problems", "events", "places", "net", "setting_values"},
    {"logs", "modelstore", "containers"},
    {"backends", "resources"},
    {"instances", "jobs", "control"},
    {"host", "doubts"},
    {"metrics", "rest", "api"},
    {"streams", "websocket"},
    {"app", "ui"},
    {"server", "commands"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {part: number for number, parts in enumerate(LEVELS) for part in parts}


def sources(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "solarhost").parts[0].removesuffix(".py")


def test_imports_run_one_way() -> None:
    wrong = []
    for path in sources("solarhost"):
        part = part_of(path)
        assert part in LEVEL_OF, f"say in this test where {part} belongs"
        for name in imported_modules(ast.parse(path.read_text())):
            pieces = name.split(".")
            if pieces[0] == "solarhost" and pieces[1] in LEVEL_OF and LEVEL_OF[pieces[1]] > LEVEL_OF[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_the_model_server_knows_nothing_of_the_agent() -> None:
    for path in sources("hf_server"):
        names = set(imported_modules(ast.parse(path.read_text())))
        assert not [name for name in names if name.split(".")[0] == "solarhost"], path


@pytest.mark.parametrize("package", ["solarhost", "hf_server"])
def test_imports_stand_at_the_top(package: str) -> None:
    inside = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(package)
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert inside == []
