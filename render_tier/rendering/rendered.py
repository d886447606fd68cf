"""A rendered prompt: the GenerateRequest, with its token IDs as the parts that they came in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.token_ids import PromptIds

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.features import Features
    from render_tier.multimodal.pictures import Pictures


COPIED = 1 << 14
"""Bytes of a piece below which it is cheaper to copy than to send by itself."""


@dataclass(frozen=True)
class Rendered:
    request: GenerateRequest
    """Complete but for ``token_ids`` and what `media` holds."""
    ids: PromptIds
    """Of the prompt as engines compute it."""
    media: Features | Pictures | None = None
    """What the request holds for images; `request` has none of it."""

    def encode(self, *, compact: bool = False) -> list[bytes]:
        """The GenerateRequest as JSON, in pieces: images are large, and are not copied. ``compact``: with
        ``token_ids`` as `PromptIds.base64`."""
        fields = {name: getattr(self.request, name) for name in self.request.__struct_fields__}
        ids = self._sent_ids()
        fields["token_ids"] = ids.base64() if compact else msgspec.Raw(ids.json())
        if self.media is not None:
            del fields[self.media.field]
        encoded = msgspec.json.encode(
            {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        )
        if self.media is None:
            return [encoded]
        return _fewer([encoded[:-1], b",", *self.media.pieces(), b"}"])

    def generate_request(self) -> GenerateRequest:
        if self.media is None:
            return msgspec.structs.replace(self.request, token_ids=self.ids.to_list())
        return msgspec.json.decode(b"".join(self.encode()), type=GenerateRequest)

    def _sent_ids(self) -> PromptIds:
        sent = None if self.media is None else self.media.sent_ids()
        return self.ids if sent is None else PromptIds.of(sent)


def _fewer(pieces: Iterable[bytes]) -> list[bytes]:
    """The same bytes, neighbours that are small in one piece."""
    merged: list[bytes] = []
    for small, some in groupby(pieces, key=lambda piece: len(piece) < COPIED):
        neighbours = list(some)
        merged += [b"".join(neighbours)] if small else neighbours
    return merged
