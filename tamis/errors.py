"""The one error hierarchy: what went wrong, with the value, the limit and the way out.

Every error a user can cause derives from `TamisError`. The server turns it into an OpenAI error object with
`status`; the command line prints `sentence()` and leaves with `exit_code`.
"""

from __future__ import annotations

from typing import Any


class TamisError(Exception):
    """Base class.

    Attributes:
        message: one sentence that names the bad value and the limit.
        param: the request field, flag or tensor at fault, or None.
        hint: what to do about it, or None.
        status: HTTP status of the error object.
        code: short machine-readable reason (OpenAI's `code`).
        error_type: OpenAI's `type`.
        exit_code: process exit code on the command line.
        retry_after_s: when trying again may help, seconds to wait first (the Retry-After header); else None.
    """

    status: int = 500
    code: str = "internal_error"
    error_type: str = "server_error"
    exit_code: int = 1
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        if code is not None:
            self.code = code

    def sentence(self) -> str:
        """The message and, when there is one, the way out, on one line."""
        return f"{self.message} {self.hint}" if self.hint else self.message

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI error object: `{"error": {message, type, param, code}}`."""
        return {
            "error": {
                "message": self.sentence(),
                "type": self.error_type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequestError(TamisError):
    """The request cannot be served as written (400)."""

    status = 400
    code = "invalid_value"
    error_type = "invalid_request_error"
    exit_code = 2


class UnsupportedError(InvalidRequestError):
    """A parameter that this server knows of but does not honour: refused, never ignored (400)."""

    code = "unsupported_parameter"


class ContextLengthError(InvalidRequestError):
    """Prompt, or prompt plus `max_tokens`, is longer than the model's context (400)."""

    code = "context_length_exceeded"


class AuthenticationError(TamisError):
    """A missing or wrong API key (401)."""

    status = 401
    code = "invalid_api_key"
    error_type = "authentication_error"


class NotFoundError(TamisError):
    """Unknown model or route (404)."""

    status = 404
    code = "not_found"
    error_type = "invalid_request_error"
    exit_code = 2


class RequestTooLargeError(TamisError):
    """The request body is over the byte limit (413)."""

    status = 413
    code = "request_too_large"
    error_type = "invalid_request_error"


class RequestTimeoutError(TamisError):
    """The client stopped in the middle of its request (408)."""

    status = 408
    code = "request_timeout"
    error_type = "invalid_request_error"


class OverloadedError(TamisError):
    """The waiting queue is full (429 with Retry-After)."""

    status = 429
    code = "overloaded"
    error_type = "overloaded_error"

    def __init__(self, message: str, *, retry_after_s: int = 1, **kwargs: Any):
        super().__init__(message, **kwargs)
        self.retry_after_s = retry_after_s


class UnavailableError(TamisError):
    """Still loading, or draining (503)."""

    status = 503
    code = "unavailable"
    error_type = "server_error"

    def __init__(self, message: str, *, retry_after_s: int | None = None, **kwargs: Any):
        super().__init__(message, **kwargs)
        self.retry_after_s = retry_after_s


class EngineDeadError(UnavailableError):
    """The engine process has gone; every open request ends with this (503)."""

    code = "engine_dead"


class ConfigError(TamisError):
    """A flag, a field of config.json or a combination of them that cannot be honoured."""

    code = "invalid_config"
    exit_code = 2


class CheckpointError(ConfigError):
    """A model folder that cannot be loaded: missing, surplus, misshapen or truncated tensors, no tokenizer."""

    code = "invalid_checkpoint"
