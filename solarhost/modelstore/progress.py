"""How far a pull is, and when to tell."""

import time
from collections import deque
from dataclasses import dataclass, replace

from solarhost.events import Publish, PullProgress
from solarhost.times import now_iso

SPEED_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    phase: str
    bytes_done: int
    bytes_total: int | None
    speed_bps: float | None
    trouble: str | None = None  # why it waits before its next try


class Progress:
    """The progress of one pull. Written by the pull's thread; `snapshot` may be read by any."""

    def __init__(self, source_uri: str, bytes_total: int | None, interval_s: float, publish: Publish):
        self._source_uri = source_uri
        self._interval_s = interval_s
        self._publish = publish
        self._samples: deque[tuple[float, int]] = deque(maxlen=200)  # (time, bytes)
        self._told_at = 0.0
        self.snapshot = Snapshot("queued", 0, bytes_total, None)

    def enter(self, phase: str) -> None:
        """A phase begins: told at once. `completed` and `failed` are the last."""
        if phase == "downloading":
            self._samples.clear()  # what was here already says nothing about the line
        self._update(phase=phase)
        self._tell()

    def count(self, bytes_done: int) -> None:
        """So many bytes of the selected files are here. A smaller number than before is not shown."""
        now = time.monotonic()
        done = max(bytes_done, self.snapshot.bytes_done)
        while self._samples and now - self._samples[0][0] > SPEED_WINDOW_S:
            self._samples.popleft()
        self._samples.append((now, done))
        self._update(bytes_done=done)

    def meet(self, trouble: str | None) -> None:
        """It waits before its next try, and why; None when it goes on."""
        self.snapshot = replace(self.snapshot, trouble=trouble)

    @property
    def remaining(self) -> int:
        """Bytes that are still to come, as far as is known."""
        now = self.snapshot
        return max(0, (now.bytes_total or 0) - now.bytes_done)

    def expect(self, bytes_total: int) -> None:
        """The selection is known."""
        self._update(bytes_total=bytes_total)

    def tick(self) -> None:
        """Tell again if the interval is over, whether something changed or not."""
        if time.monotonic() - self._told_at >= self._interval_s:
            self._update()
            self._tell()

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        now = self.snapshot
        # Control knows no queue; a pull that waits is one that has not begun to download.
        phase = "resolving" if now.phase == "queued" else now.phase
        self._publish(
            PullProgress(self._source_uri, phase, now.bytes_done, now.bytes_total, now.speed_bps, now_iso())
        )

    def _update(
        self, phase: str | None = None, bytes_done: int | None = None, bytes_total: int | None = None
    ) -> None:
        before = self.snapshot
        self.snapshot = replace(
            before,
            phase=phase or before.phase,
            bytes_done=before.bytes_done if bytes_done is None else bytes_done,
            bytes_total=before.bytes_total if bytes_total is None else bytes_total,
            speed_bps=self._speed_bps(),
        )

    def _speed_bps(self) -> float | None:
        """Bytes per second over the last seconds; it falls to 0 when nothing comes."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (_, last) = self._samples[0], self._samples[-1]
        return (last - first) / max(time.monotonic() - first_at, 0.001)
