"""Images that engines are given as files (``content_parts``) and put into the prompt themselves.

The prompt that engines are sent has one token for each of them, or as many as it becomes; all else goes by
what engines make of that prompt, which render says in ``content_places``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from orchestrator.core.long_strings import Apart, Strings, size_of, with_strings
from orchestrator.core.media import FeaturesError, Item
from render_tier.protocol.unreadable import UNREADABLE


class Place(msgspec.Struct):
    """As `render_tier.protocol.generate.ContentPlace`."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1)]
    token_ids: Annotated[list[int], msgspec.Meta(min_length=1)]


class _Part(msgspec.Struct):
    uuid: str
    url: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Pictures:
    token_ids: msgspec.Raw
    """Of the prompt as engines are sent it, in JSON."""
    parts: tuple[msgspec.Raw, ...]
    """In the order in which they stand there."""
    size: int
    """Bytes of all parts."""
    strings: Strings = ()
    """What the parts refer to."""

    def fields(self) -> dict[str, msgspec.Raw | Apart]:
        """Of a generate request."""
        parts = msgspec.Raw(b"[%b]" % b",".join(self.parts))
        return {"token_ids": self.token_ids, "content_parts": with_strings(parts, self.strings)}

    def followed_by(self, output: Sequence[int]) -> Pictures:
        """With ``output`` as part of the prompt."""
        if not output:
            return self
        more = msgspec.json.encode(output)[1:]
        return replace(self, token_ids=msgspec.Raw(b"%b,%b" % (bytes(self.token_ids).rstrip()[:-1], more)))

    def renamed(self, name: Callable[[str], str]) -> Pictures:
        parts = []
        for part in self.parts:
            fields = _fields_decoder.decode(part)
            own = msgspec.json.decode(fields["uuid"], type=str)
            fields["uuid"] = msgspec.Raw(msgspec.json.encode(name(own)))
            parts.append(msgspec.Raw(msgspec.json.encode(fields)))
        return replace(self, parts=tuple(parts))


@dataclass(frozen=True, slots=True)
class Placed:
    pictures: Pictures
    token_ids: list[int]
    """Of the prompt that engines make."""
    items: tuple[Item, ...]
    lacks_data: bool
    """Some picture is there by name only."""


def read_pictures(
    token_ids: Sequence[int],
    parts: Sequence[msgspec.Raw],
    places: Sequence[Place] | None,
    strings: Strings = (),
) -> Placed:
    """``token_ids``: as engines are sent them. ``strings``: what URLs of the parts refer to. Raises
    ``FeaturesError``."""
    if places is None or len(places) != len(parts):
        raise FeaturesError("content_places must have an entry for each of content_parts")
    whole: list[int] = []
    items, done, lacks_data = [], 0, False
    for part, place in zip(parts, places, strict=True):
        if not done <= place.offset <= len(token_ids) - place.length:
            raise FeaturesError("content_places must be in the prompt, and in its order")
        try:
            named = _part_decoder.decode(part)
        except UNREADABLE as error:
            raise FeaturesError(f"content_parts: {error}") from error
        lacks_data |= named.url == _NULL
        whole += token_ids[done : place.offset]
        size = memoryview(part).nbytes - memoryview(named.url).nbytes + size_of(named.url, strings)
        items.append(Item(named.uuid, len(whole), len(place.token_ids), size))
        whole += place.token_ids
        done = place.offset + place.length
    whole += token_ids[done:]
    sent = msgspec.Raw(msgspec.json.encode(token_ids))
    size = sum(item.data_bytes for item in items)
    return Placed(Pictures(sent, tuple(parts), size, strings), whole, tuple(items), lacks_data)


_NULL: Final = msgspec.Raw(b"null")
_part_decoder = msgspec.json.Decoder(_Part)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
