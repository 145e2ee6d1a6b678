"""Secrets become `***` before anything leaves the process."""

from collections.abc import Iterable

MASK = "***"


class Redactor:
    """Replaces every given secret, the longest first, so that one inside another leaves no rest."""

    def __init__(self, secrets: Iterable[str]):
        self._texts = sorted({secret for secret in secrets if secret.strip()}, key=len, reverse=True)
        self._secrets = [secret.encode() for secret in self._texts]
        self.longest = max((len(secret) for secret in self._secrets), default=0)  # bytes

    def also(self, secrets: Iterable[str]) -> "Redactor":
        """One that replaces these too."""
        return Redactor([*self._texts, *secrets])

    def data(self, raw: bytes) -> bytes:
        """Redact bytes; they must not begin or end inside a secret."""
        for secret in self._secrets:
            raw = raw.replace(secret, MASK.encode())
        return raw

    def text(self, text: str) -> str:
        """Redact text."""
        for secret in self._texts:
            text = text.replace(secret, MASK)
        return text

    def safe_cut(self, raw: bytes, at: int) -> int:
        """The last position up to `at` where `raw` can be cut without cutting a secret in two."""
        moved = True
        while moved:
            moved = False
            for secret in self._secrets:
                start = raw.find(secret, max(0, at - len(secret) + 1), at + len(secret) - 1)
                if 0 < start < at:
                    at, moved = start, True
        return at
