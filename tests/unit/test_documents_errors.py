"""`docs/errors.md` against the code: every word, status and sentence that a caller may meet is explained."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from solarhost.api.errors import STATUS
from solarhost.instances.status import Reason
from solarhost.modelstore import failures
from solarhost.server.refusals import STATUS_OF_ERROR
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
WORDS = re.sub(r"[`\s]+", " ", PAGE)
NOT_FAILED = {Reason.NEVER_STARTED, Reason.USER_STOP, Reason.AGENT_SHUTDOWN, Reason.READY, Reason.ADOPTED}
# Whose text becomes the sentence of a failed start, and where.
RAISED = {
    "CannotStart": "solarhost/**/*.py",
    "NotReady": "solarhost/instances/readiness.py",
    "GpuShort": "solarhost/resources/charges.py",
    "GpuUnreadable": "solarhost/resources/charges.py",
    "NotPulled": "solarhost/modelstore/store.py",
    "InvalidRequest": "solarhost/modelstore/selection.py",
    "StartFailed": "hf_server/engine/*.py",
}
# Functions and tables whose strings are such sentences.
TOLD = {
    "solarhost/backends/llamacpp_failures.py": ("_CAUSES", "_SIGNALS", "explain"),
    "solarhost/backends/huggingface_failures.py": ("explain",),
    "hf_server/engine/checkpoint.py": ("_explain",),
    "solarhost/instances/ports.py": ("PortTaken", "NoSuchAddress"),
}
SHORTEST = 11  # letters of a piece that is telling


def trees(pattern: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.glob(pattern)):
        yield path, ast.parse(path.read_text())


def texts(node: ast.AST) -> Iterator[str]:
    """Strings to be read below `node`; a value put into one stands as a line break."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("re.compile", "removeprefix")):
        return  # what is looked for, not what is told
    if isinstance(node, ast.Compare):
        return
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def is_explained(text: str) -> bool:
    """Whether the page has a telling piece of it: what stands between values, colons and the like."""
    pieces = [piece.strip(" .,'`") for piece in re.split(r"[\n:;,()]", text)]
    telling = [piece for piece in pieces if len(piece) >= SHORTEST]
    return not telling or any(re.sub(r"[`\s]+", " ", piece) in WORDS for piece in telling)


def test_every_word_for_programs_is_explained():
    words = set(failures.STATUS)
    for _, tree in trees("solarhost/**/*.py"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                words |= {
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value == "error"
                    and isinstance(value, ast.Constant)
                }
    assert len(words) > 8
    assert [word for word in sorted(words) if f"`{word}`" not in PAGE and f'"{word}"' not in PAGE] == []


def test_every_status_is_explained():
    statuses = {status for _, status in (*STATUS, *STATUS_OF_ERROR)} | set(failures.STATUS.values())
    for _, tree in trees("solarhost/**/*.py"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("alt_response", "refuse", "TooLarge")
            ):
                statuses |= {
                    argument.value
                    for argument in node.args
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
                }
    listed = {
        int(status)
        for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
        for status in row.split(", ")
    }
    assert {status for status in statuses if status >= 400} - listed == set()


def test_every_reason_of_a_failure_is_explained():
    assert [reason for reason in Reason if reason not in NOT_FAILED and f"| `{reason}` |" not in PAGE] == []


def test_every_sentence_of_a_failed_start_is_explained():
    said = []
    for name, pattern in RAISED.items():
        for path, tree in trees(pattern):
            calls = [
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == name
            ]
            said += [(path, text) for call in calls for argument in call.args for text in texts(argument)]
    for name, parts in TOLD.items():
        tree = ast.parse((ROOT / name).read_text())
        said += [(Path(name), text) for node in tree.body if _name(node) in parts for text in _told(node)]
    assert len(said) > 60
    assert [f"{path.name}: {text}" for path, text in said if not is_explained(text)] == []


def test_every_problem_of_the_agent_is_explained():
    said = []
    for path, tree in trees("solarhost/**/*.py"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("problems.report"):
                said += [(path, text) for text in texts(node.args[1])]
    assert len(said) > 10
    assert [f"{path.name}: {text}" for path, text in said if not is_explained(text)] == []


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return getattr(node, "name", "")


def _told(node: ast.AST) -> Iterator[str]:
    """Of a function what it returns, of a class what it tells its base, of a table all."""
    if isinstance(node, ast.FunctionDef):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return) and inner.value is not None:
                yield from texts(inner.value)
    elif isinstance(node, ast.ClassDef):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                yield from texts(inner)
    else:
        yield from texts(node)
