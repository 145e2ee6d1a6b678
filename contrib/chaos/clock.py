"""The agent's wall clock, which can be stepped while it runs; the machine's own is left alone."""

import shutil
import struct
import subprocess
from pathlib import Path

from contrib.chaos.findings import say

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """A library for LD_PRELOAD and the file that it reads. Needs a C compiler; without, it never steps."""

    def __init__(self, folder: Path):
        self._offset = folder / "clock"
        self._library = folder / "clock.so"
        self.step(0)
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.can_step = compiler is not None
        if compiler is None:
            say("skipped: steps of the clock need a C compiler")
            return
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to live by this clock."""
        if not self.can_step:
            return {}
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._offset)}

    def step(self, offset_s: int) -> None:
        """Be so many seconds before the machine's clock from now on, behind it when negative."""
        with open(self._offset, "r+b" if self._offset.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", offset_s))
