"""How a pull fails, towards callers and between the agent and its workers."""

import errno

from solarhost.errors import Unavailable
from solarhost.shortages import is_shortage, why

STATUS = {
    "invalid_request": 400,
    "auth_failed": 401,
    "not_found": 404,
    "credentials_missing": 500,
    "model_pull_failed": 500,
    "source_unreachable": 502,
    "insufficient_storage": 507,
}


class PullError(Unavailable):
    """A pull that did not work; `code` is a key of `STATUS`, which callers match on."""

    def __init__(self, code: str, detail: str, source_uri: str = "", status: int | None = None):
        super().__init__(detail)
        self.code = code
        self.source_uri = source_uri
        self.status = status or STATUS[code]

    def about(self, source_uri: str) -> "PullError":
        """The same failure, told to a caller who asked for `source_uri`."""
        return PullError(self.code, str(self), source_uri, self.status)

    def body(self) -> dict[str, object]:
        return {
            "error": self.code,
            "detail": str(self),
            "source_uri": self.source_uri,
            "status_code": self.status,
        }


def could_not_write(error: Exception) -> PullError:
    """Our own disk's refusal (an OSError, or the StoreError that one caused) as the failure of a pull."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and is_shortage(cause):
        return PullError("model_pull_failed", f"the system refused what it needs: {why(cause)}")
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    words = f"could not write: {error}" if isinstance(error, OSError) else str(error)
    return PullError("insufficient_storage" if full else "model_pull_failed", words)


class DigestMismatch(PullError):
    """The bytes that came are not those that the source announced."""

    def __init__(self, detail: str):
        super().__init__("model_pull_failed", detail, status=502)


class Interrupted(Exception):
    """A request that broke off or was put off; asking again may help."""

    def __init__(self, why: str, retry_after_s: float = 0.0):
        super().__init__(why)
        self.retry_after_s = retry_after_s
