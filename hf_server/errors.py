"""Errors as OpenAI's API shapes them: `{"error": {"message", "type", "param", "code"}}`."""

from typing import Any


class ApiError(Exception):
    """Base of all refusals; its text is one sentence for the caller.

    Args:
        message: the sentence.
        param: name of the field that it is about.
    """

    status = 500
    kind = "server_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class BadRequest(ApiError):
    """The request breaks a rule; `param` names the field."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(BadRequest):
    """A prompt that the model has no room for; it is never cut."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int, limit: int, param: str):
        super().__init__(f"the input has {tokens} tokens; this model takes at most {limit}", param)
        self.tokens, self.limit = tokens, limit


class WrongKey(ApiError):
    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"


class UnknownPath(ApiError):
    status = 404
    kind = "invalid_request_error"
    code = "unknown_url"


class WrongMethod(ApiError):
    status = 405
    kind = "invalid_request_error"
    code = "method_not_supported"


class RequestTimeout(ApiError):
    """The client began a request and did not go on with it."""

    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"


class BodyTooLarge(ApiError):
    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"


class HeadTooLarge(ApiError):
    status = 431
    kind = "invalid_request_error"
    code = "head_too_large"


class Overloaded(ApiError):
    """As many requests wait as may wait."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"
    retry_after_s = 1


class ModelLoading(ApiError):
    status = 503
    code = "model_loading"
    retry_after_s = 2


class Stopping(ApiError):
    status = 503
    code = "server_stopping"


class OutOfMemory(ApiError):
    """The device had no room for this request; the server goes on."""

    status = 503
    code = "out_of_memory"
    retry_after_s = 1


class ClientGone(ApiError):
    """Nobody reads the answer any more; 499 is nginx's code for it."""

    status = 499


class StartFailed(Exception):
    """The model can't be served; the text is one sentence that names the cause and what to do."""
