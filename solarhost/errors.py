"""Errors that more than one part raises; a part's own ones derive from these.

Callers outside (REST, the command line, the control link) treat a *kind* of error alike, so the
kinds are the bases here and `api/errors.py` gives each kind its HTTP status.
"""


class SolarHostError(Exception):
    """Base of everything this program raises on purpose. Its text is one sentence for an operator."""


class InvalidRequest(SolarHostError):
    """The request can't be understood or breaks a rule; `errors` names the fields, where known."""

    def __init__(self, message: str, errors: dict[str, list[str]] | None = None):
        super().__init__(message)
        self.errors = errors or {}


class NotFound(SolarHostError):
    """What was asked for does not exist (any more)."""


class Conflict(SolarHostError):
    """The request is fine, but not in the present state."""


class Unavailable(SolarHostError):
    """Something outside this program (Docker, a driver, control) can't be used right now."""


class StoreError(SolarHostError):
    """A file could not be written or read, so nothing was changed."""


class SettingsError(SolarHostError):
    """A setting can't be parsed or two contradict each other; the text names the variable."""
