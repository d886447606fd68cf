"""The `content_parts` of a GenerateRequest: images as pictures that engines read and normalize themselves, at
the size that they have for the model. For engines that cannot be told where an image's embeddings stand: they
find that out where they put an image's tokens into the prompt themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from render_tier.multimodal.features import Features, Payload
from render_tier.multimodal.placeholders import Range
from render_tier.multimodal.prepared import NamedItem

DATA_URL = b"data:image/x-portable-pixmap;base64,"


@dataclass(frozen=True)
class Pictures:
    placed: Sequence[tuple[NamedItem, Range]]
    """In the order of their places in the whole prompt."""
    ids: Sequence[int]
    """Of the whole prompt."""
    payload: Payload
    as_whole: bool
    """Whether engines are sent all of them, and not one for each image."""
    field = "content_parts"
    """Of the request that has them."""

    def sent_ids(self) -> list[int]:
        sent: list[int] = []
        done = 0
        for _, where in self.placed:
            sent += self.ids[done : where.offset + self._sent_length(where)]
            done = where.offset + where.length
        return [*sent, *self.ids[done:]]

    def pieces(self) -> list[bytes]:
        """Members of a JSON object, in pieces: pictures are large, and are not copied."""
        pieces, before = [b'"content_parts":'], b"["
        for item, _ in self.placed:
            name = msgspec.json.encode(item.mm_hash)
            pieces.append(b'%b{"type":"image_url","uuid":%b,"url":' % (before, name))
            sent = self.payload == "tensors"
            pieces += [b'"%b' % DATA_URL, item.item.kwargs, b'"}'] if sent else [b"null}"]
            before = b","
        return [*pieces, b'],"content_places":', msgspec.json.encode(self._places())]

    def _places(self) -> list[dict[str, Any]]:
        places, shorter = [], 0
        for _, where in self.placed:
            ids = self.ids[where.offset : where.offset + where.length]
            length = self._sent_length(where)
            places.append({"offset": where.offset - shorter, "length": length, "token_ids": ids})
            shorter += where.length - length
        return places

    def _sent_length(self, where: Range) -> int:
        return where.length if self.as_whole else 1


def pictures_of(features: Features, ids: Iterable[int], *, as_whole: bool) -> Pictures:
    """Of images alone. ``ids``: of the whole prompt. ``as_whole``: as `Pictures.as_whole`."""
    return Pictures(features.items.get("image", ()), list(ids), features.payload, as_whole)
