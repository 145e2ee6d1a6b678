"""From token ids to text that is certain: whole characters, and no half of a stop string."""

from collections.abc import Sequence

from hf_server.generation import Decode

_WINDOW = 6  # tokens decoded again for context: blanks and accents depend on the neighbours


class Detokenizer:
    """Turns one answer's tokens into text piece by piece; the pieces join to the decoded whole."""

    def __init__(self, decode: Decode):
        self._decode = decode
        self._tokens: list[int] = []
        self._shown = 0  # tokens whose text was handed out
        self._start = 0  # first token of the context that is decoded again

    def push(self, token: int) -> str:
        """Add a token; returns the text that is certain now, often ''."""
        self._tokens.append(token)
        piece = self._pending()
        if not piece or piece.endswith("\ufffd"):  # the first bytes of a character
            return ""
        self._shown = len(self._tokens)
        self._start = max(self._start, self._shown - _WINDOW)
        return piece

    def finish(self) -> str:
        """The text that is left when no token follows."""
        return self._pending()

    def _pending(self) -> str:
        known = self._decode(self._tokens[self._start : self._shown])
        return self._decode(self._tokens[self._start :])[len(known) :]


class StopScanner:
    """Cuts text at the first stop string and keeps back what may become one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""
        self._stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Add text; returns what may be shown, and True once a stop string came: nothing follows it."""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held, self._stopped = "", True
            return text[: min(found)], True
        kept = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def finish(self, piece: str) -> tuple[str, bool]:
        """Add the last text; what was kept back is shown if it did not become a stop string."""
        if self._stopped:
            return "", True
        shown, stopped = self.push(piece)
        return shown + self._held, stopped

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that `stop` begins with."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
