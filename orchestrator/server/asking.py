"""Who asks: what the gate of keys has found out, and whether it is an operator, who may see and change this
server's inside: whoever has the admin key or, where none is set, this machine."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from orchestrator.core.access import Access
from orchestrator.core.credentials import Ambiguous, from_this_machine, shown_key, shown_password
from orchestrator.settings import Server
from render_tier.protocol.errors import ApiError

_ACCESS: Final = "orchestrator.access"

STATUS_PATH: Final = "/status"

_WISHES: Final = frozenset({"x-pd-explain", "x-pd-timing"})
"""Whose answers name members, to those who may see them."""


def note_access(scope: Scope, access: Access) -> None:
    scope[_ACCESS] = access


def access_of(scope: Scope) -> Access | None:
    """None where no keys are configured."""
    access: Access | None = scope.get(_ACCESS)
    return access


def client_headers(scope: Scope) -> dict[str, str]:
    """By lower-case name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def sees_members(scope: Scope, headers: Mapping[str, str], server: Server) -> bool:
    """Whether a client that wishes to may see which members serve it. False where it has no such wish."""
    if _WISHES.isdisjoint(headers):
        return False
    access = access_of(scope)
    return is_operator(scope, server) if access is None else access.grant.explain


def require_operator(scope: Scope, server: Server) -> None:
    """Raises ``ApiError``, which says no more than what is missing."""
    key = server.admin_key
    if key is not None:
        if not hmac.compare_digest(_shown(scope), key.get_secret_value().encode()):
            raise ApiError("this needs the admin key as a bearer token", status=401, type="Unauthorized")
    elif not from_this_machine((scope["client"] or (None,))[0], scope["headers"]):
        raise ApiError(
            "this answers from other machines only when server.admin_key is set", status=403, type="Forbidden"
        )


def challenge(scope: Scope) -> str:
    """How a key may be shown where one is missing. Browsers ask their user for one only where it lets them
    look: they would also send it along with what the pages of other sites make them do."""
    return 'Basic realm="pd-orchestrator", charset="UTF-8"' if _is_looked_at(scope) else "Bearer"


def _shown(scope: Scope) -> bytes:
    try:
        shown = shown_key(scope["headers"])
    except Ambiguous:
        return b""
    if shown is None and _is_looked_at(scope):
        shown = shown_password(scope["headers"])
    return shown or b""


def _is_looked_at(scope: Scope) -> bool:
    """The request reads ``/status``, and so changes nothing."""
    looks: bool = scope["path"] == STATUS_PATH and scope["method"] in ("GET", "HEAD")
    return looks


def is_operator(scope: Scope, server: Server) -> bool:
    try:
        require_operator(scope, server)
    except ApiError:
        return False
    return True
