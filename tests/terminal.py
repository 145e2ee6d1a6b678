"""A program on a terminal of its own, as a person uses it."""

import os
import pty
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence

from tests.agent import wait_until


class Terminal:
    """Runs a program on a pseudo terminal; what it shows is collected whenever somebody waits."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._master, slave = pty.openpty()
        self.shown = ""
        self._process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C; the terminal is not the session's own, so the signal comes from here."""
        self._process.send_signal(signal.SIGINT)

    def wait_for(self, text: str, timeout_s: float = 60) -> None:
        """Wait until it shows `text` after whatever was waited for before."""
        try:
            wait_until(lambda: text in self.read(), timeout_s, f"{text!r} on the terminal")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.shown!r}") from error
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        """Wait until it ends; returns its exit code."""
        wait_until(lambda: self.read() is not None and self._process.poll() is not None, 60, "its end")
        self.read()
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def read(self) -> str:
        """What it showed since the text that was last waited for."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # everyone else has closed it
                break
        return self.shown
