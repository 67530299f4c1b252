"""Errors of the endpoint, in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any

#: What the kinds of errors are called, by status.
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
}


class ApiError(Exception):
    """A request that is refused or failed.

    Args:
        status: of HTTP.
        message: one line.
        param: the parameter at fault.
        code: a word for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        fault = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fault}


def invalid(param: str | None, message: str) -> ApiError:
    """A parameter has a wrong value."""
    return ApiError(400, message, param, "invalid_value")


def unsupported(param: str, message: str) -> ApiError:
    """A parameter asks for what is not done here."""
    return ApiError(400, message, param, "unsupported_value")


def prompt_too_long(param: str, length: int, limit: int, setting: str = "") -> ApiError:
    """A prompt, which is in the parameter ``param``, leaves no room for an answer."""
    by = f" ({setting})" if setting else ""
    return ApiError(
        400,
        f"the prompt has {length} tokens, which leaves no room for an answer in the {limit} tokens "
        f"that are possible{by}; send less, or ask for fewer tokens",
        param,
        "context_length_exceeded",
    )


def session_ended(session: str) -> ApiError:
    """A session is unknown, or over."""
    return ApiError(
        404, f"there is no open session {session[:64]!r}; it has ended, or never was", None,
        "session_not_found",
    )  # fmt: skip
