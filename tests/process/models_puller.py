"""A model store as tests drive it."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import psutil
import pytest

from solarhost.events import PullProgress
from solarhost.modelstore.failures import PullError
from solarhost.modelstore.store import ModelStore
from solarhost.problems import Problems
from solarhost.settings import Settings
from tests.process.models_faults import Content


class Puller:
    """A store, and what it told."""

    def __init__(self, **settings: Any):
        self.events: list[PullProgress] = []
        values = {
            "min_free_disk_gb": 0.0,
            "pull_stall_timeout_s": 10.0,
            "pull_retries": 2,
            "pull_retry_delay_s": 0.05,
            "pull_progress_interval_s": 0.2,
        }
        self.store = ModelStore(
            Settings(**(values | settings)),
            self.events.append,
            Problems(),
            lambda: (),  # type: ignore[arg-type]
        )
        self.folder = self.store.folder

    def pull(self, uri: str, reference: str = "", **changes: Any) -> dict[str, Any]:
        """Of the hub, unless a reference in the registry is given."""
        return self.store.pull(
            source="harbor" if reference else "huggingface",
            source_uri=uri,
            reference=reference or uri.partition("://")[2],
            **({"labels": {}} | changes),
        )

    def in_background(self, uri: str, **changes: Any) -> tuple[Thread, list[Any]]:
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(self.pull(uri, **changes))
            except PullError as error:
                outcome.append(error)

        thread = Thread(target=run)
        thread.start()
        return thread, outcome

    def failure(self, uri: str, reference: str = "", **changes: Any) -> PullError:
        with pytest.raises(PullError) as caught:
            self.pull(uri, reference, **changes)
        return caught.value

    def on_disk(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


MakePuller = Callable[..., Puller]


def workers() -> list[psutil.Process]:
    """The worker processes of this test."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any(word.startswith("solarhost.modelstore.") for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def bytes_of(content: Content) -> bytes:
    return b"".join(content.read(0, content.size))
