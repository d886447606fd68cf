"""Engines' messages to clients without what they say of our inside.

A refusal of an engine is passed on because it is about the client's request; it may also name who refused.
Addresses, ids and what transfers KV are taken out, whoever wrote them: such a message is read by a person,
who loses nothing by it.
"""

from __future__ import annotations

import re
from typing import Final

REMOVED: Final = "[…]"

MAX_MESSAGE_CHARS: Final = 2000

_INSIDE = re.compile(
    r"""
      \b[a-z][a-z0-9+.-]*+://[^\s"'<>)\]},;]+                            # a URL
    | \b(?:\d{1,3}\.){3}\d{1,3}\b(?::\d{1,5}\b)?                         # an IPv4 address
    | \[[0-9a-f:.%]*:[0-9a-f:.%]*\](?::\d{1,5}\b)?                       # an IPv6 address in brackets
    | (?<![0-9a-z:])(?=[0-9a-f:]*::?[0-9a-f]*:)[0-9a-f:]{3,39}(?![0-9a-z:])         # and without
    | (?<![0-9a-z.-])(?=[0-9.-]*[a-z])[a-z0-9][a-z0-9.-]*+:\d{2,5}\b     # a host and a port
    | (?<![0-9a-z.-])(?=[a-z0-9.-]*\.(?:svc|local|internal|lan)\b)[a-z0-9][a-z0-9.-]*   # a name inside
    | (?<![0-9a-z-])(?=[0-9a-z-]*[0-9a-f]{16}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})[0-9a-z-]+  # an id
    | \b(?:do_remote|remote|local|peer|engine)_[a-z_]+\b["']?(?:\s*[=:]\s*[^\s,;)}\]]+)?  # KV transfer
    | \b(?:kv|ec)_transfer_params\b
    | \b(?:engine|instance|worker|node|pod|host)\s+(?=[\w.-]*\d)[\w.-]+                # a name with a number
    | (?<![\w/])/(?:[\w.@+-]+/)+[\w.@+-]+                                # a path of files
    """,
    re.VERBOSE | re.IGNORECASE,
)

_TYPE = re.compile(r"[A-Za-z][A-Za-z_ ]{0,63}")
_PARAM = re.compile(r"[A-Za-z_][\w.\[\]-]{0,127}")


def public_message(message: str) -> str:
    """At most ``MAX_MESSAGE_CHARS`` characters and a mark for each thing taken out."""
    cut = message[:MAX_MESSAGE_CHARS]
    return _INSIDE.sub(REMOVED, cut)


def public_type(kind: str) -> str:
    """Empty for what is no name of a kind of error."""
    return kind if _TYPE.fullmatch(kind) else ""


def public_param(param: str | None) -> str | None:
    return param if param is not None and _PARAM.fullmatch(param) and not _INSIDE.search(param) else None
