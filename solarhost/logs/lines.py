"""One log line as everyone outside `logs` sees it."""

from typing import NamedTuple


class LogLine(NamedTuple):
    seq: int
    timestamp: str  # ISO 8601, UTC
    line: str  # decoded and redacted, without its line end

    def as_json(self) -> dict[str, object]:
        return {"seq": self.seq, "timestamp": self.timestamp, "line": self.line}
