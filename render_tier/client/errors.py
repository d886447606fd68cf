"""How a call ends that has no answer: refused, no server reached, or answered with what cannot be read."""

from __future__ import annotations

from render_tier.protocol.errors import read_error


class ClientError(Exception):
    """Any of the others."""

    attempts: int = 1
    """How often the call was made."""


class Refused(ClientError):
    """A server answered with an error."""

    def __init__(self, status: int, body: bytes) -> None:
        error = read_error(body)
        self.status = status
        self.type = error.type if error is not None else ""
        self.param = error.param if error is not None else None
        self.message = error.message if error is not None else body[:500].decode(errors="replace")
        super().__init__(f"{status} {self.type}: {self.message}")


class Unreachable(ClientError):
    """No connection, or one that broke before the answer was complete."""


class Unreadable(ClientError):
    """An answer without what a record needs."""
