"""What went wrong, and how to see it again."""

import sys
import time
from collections import Counter
from dataclasses import dataclass
from threading import Lock

SHOWN_OF_A_KIND = 3


@dataclass(frozen=True)
class Finding:
    """One broken promise."""

    kind: str
    step: int  # the last one that had begun
    at_s: float  # since the run began
    expected: str
    measured: str


class Findings:
    """Collects findings and prints each as it comes. Safe from any thread."""

    def __init__(self, repeat: str):
        self.step = 0
        self.began = time.monotonic()
        self._repeat = repeat  # the command that repeats the run
        self._lock = Lock()  # guards what follows
        self.found: list[Finding] = []
        self._kinds: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def add(self, kind: str, expected: str, measured: str) -> None:
        """Of each kind the first few are printed, all are counted."""
        finding = Finding(kind, self.step, self.elapsed_s, expected, measured)
        with self._lock:
            self.found.append(finding)
            self._kinds[kind] += 1
            if self._kinds[kind] > SHOWN_OF_A_KIND:
                return
        say(
            f"FINDING {kind}\n"
            f"    at        step {finding.step}, {finding.at_s:.1f} s\n"
            f"    expected  {expected}\n"
            f"    measured  {measured}\n"
            f"    repeat    {self._repeat}"
        )

    def note(self, what: str) -> None:
        """Count something that is worth knowing and no fault."""
        with self._lock:
            self._notes[what] += 1

    def summary(self) -> str:
        with self._lock:
            lines = [f"  {count:6d}  {what}" for what, count in sorted(self._notes.items())]
            kinds = [f"  {count:6d}  {kind}" for kind, count in sorted(self._kinds.items())]
        verdict = f"{len(self.found)} findings" if self.found else "no finding"
        return "\n".join([*lines, f"{verdict} in {self.elapsed_s:.0f} s", *kinds])


def say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)
