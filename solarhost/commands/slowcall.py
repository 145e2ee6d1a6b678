"""A call whose answer takes its time, so that something can be shown meanwhile."""

from threading import Thread
from typing import Any

from solarhost.commands.failures import CommandFailed
from solarhost.commands.remote import Remote


class SlowCall(Thread):
    """Waits for one answer of the agent; a daemon, so that Ctrl-C need not wait for it, too."""

    def __init__(self, remote: Remote, method: str, path: str, body: object = None):
        super().__init__(name="slow-call", daemon=True)
        self._remote = remote
        self._request = (method, path, body)
        self._answer: Any = None
        self._failure: CommandFailed | None = None

    def run(self) -> None:
        try:
            self._answer = self._remote.call(*self._request, answer_s=None)
        except CommandFailed as error:
            self._failure = error

    def result(self) -> Any:
        """What the agent answered; waits for it. Raises CommandFailed."""
        self.join()
        if self._failure is not None:
            raise self._failure
        return self._answer
