"""The error body every hop speaks, and the one exception that carries it to an HTTP boundary.

Shape (vLLM's): ``{"error": {"message", "type", "param", "code"}}`` where ``code`` equals the HTTP status.
"""

from __future__ import annotations

from typing import Final

import msgspec

from render_tier.protocol.unreadable import UNREADABLE


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


class ApiError(Exception):
    """A request that ends in an error answer.

    ``status`` is the HTTP status, ``type`` the OpenAI/vLLM error type, ``param`` the request field at fault.
    """

    status: int = 500
    type: str = "InternalServerError"
    retry_after: int | None = None
    """Seconds for a ``Retry-After`` header, where the server has measured something to say."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int | None = None, type: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if status is not None:
            self.status = status
        if type is not None:
            self.type = type

    def body(self) -> ErrorBody:
        return ErrorBody(ErrorInfo(self.message, self.type, self.param, self.status))

    def encode(self) -> bytes:
        """The JSON error body."""
        return msgspec.json.encode(self.body())


class BadRequest(ApiError):
    """The client's request is wrong and will be wrong again (400)."""

    status = 400
    type = "BadRequestError"


class ContinuationRefused(BadRequest):
    """The prompt does not go on from the token IDs of the turn before, which the client insists on (400)."""

    type = "ContinuationRefusedError"


class ImageRequired(BadRequest):
    """A request names by its ``uuid`` alone an image that this replica does not hold (400): send the
    image."""

    type = "ImageRequiredError"


class NotFound(ApiError):
    """The named model (or other object) is not served here (404)."""

    status = 404
    type = "NotFoundError"


class ContextRequired(ApiError):
    """A derender call names a context this replica does not hold (409): send ``chat_request`` and
    ``prompt_token_ids`` once with the same ``stream_state``."""

    status = 409
    type = "ContextRequiredError"


class PayloadTooLarge(ApiError):
    """The body exceeds the configured bound (413)."""

    status = 413
    type = "PayloadTooLargeError"


class NotSupported(ApiError):
    """Valid, but this deployment cannot do it (501)."""

    status = 501
    type = "NotImplementedError"


class BadGateway(ApiError):
    """A server behind this one failed, or answered what cannot be read (502)."""

    status = 502
    type = "BadGatewayError"


class Unavailable(ApiError):
    """Overload, or a hop that cannot be reached (503); safe to send again later."""

    status = 503
    type = "ServiceUnavailableError"


class GatewayTimeout(ApiError):
    """The time for the request, or for a server behind this one, is over (504)."""

    status = 504
    type = "GatewayTimeoutError"


STATUS_TYPES: Final = {
    cls.status: cls.type
    for cls in (
        BadRequest, NotFound, ContextRequired, PayloadTooLarge, NotSupported, BadGateway, Unavailable,
        GatewayTimeout, ApiError,
    )
}  # fmt: skip


class _Info(msgspec.Struct):
    message: str = ""
    type: str = ""
    param: str | None = None
    code: object = None


class _Body(msgspec.Struct):
    error: _Info | str = ""


def read_error(body: bytes) -> ErrorInfo | None:
    """The error that a peer has sent in this shape, whose type may be missing (empty) and whose code need not
    be a number (0); None for anything else."""
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except UNREADABLE:
        return None
    if not isinstance(error, _Info) or not error.message:
        return None
    return ErrorInfo(error.message, error.type, error.param, error.code if isinstance(error.code, int) else 0)
