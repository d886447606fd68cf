"""What the parser core tells its caller, in the order in which it becomes certain."""

from __future__ import annotations

import msgspec

from render_tier.core.table import Region


class Text(msgspec.Struct, frozen=True, gc=False):
    """More text of a region that is shown: `Region.REASONING` or `Region.CONTENT`. Never empty."""

    region: Region
    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. ``index`` counts from 0; the name comes once and whole. ``written_id``: the call's
    ID as the model wrote it, for families whose format has one; else empty."""

    index: int
    name: str
    written_id: str = ""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More text of the arguments of the current call, never to be taken back. Never empty."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is over. ``complete``: its arguments are one whole valid JSON value."""

    index: int
    complete: bool


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """The next ``count`` output tokens belong to ``region``. Every token is in exactly one such run, in
    order; a token whose text is held back is attributed when its first character is."""

    region: Region
    count: int


class Stopped(msgspec.Struct, frozen=True, gc=False):
    """A stop string was matched. Nothing after it is parsed; the token that completed it is the last one
    counted."""

    stop: str


Event = Text | CallStart | CallArguments | CallEnd | Tokens | Stopped
