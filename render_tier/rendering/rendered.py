"""A rendered prompt: the GenerateRequest, with its token IDs as the parts that they came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.token_ids import PromptIds

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.features import Features


@dataclass(frozen=True)
class Rendered:
    request: GenerateRequest
    """Complete but for ``token_ids``, which are `ids`, and `features`."""
    ids: PromptIds
    features: Features | None = None
    """What the request holds for images; `request` has none of it."""

    def encode(self, *, compact: bool = False) -> bytes:
        """The GenerateRequest as JSON; ``compact``: with ``token_ids`` as `PromptIds.base64`."""
        fields = {name: getattr(self.request, name) for name in self.request.__struct_fields__}
        fields["token_ids"] = self.ids.base64() if compact else msgspec.Raw(self.ids.json())
        if self.features is not None:
            del fields["features"]
        encoded = msgspec.json.encode(
            {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        )
        if self.features is None:
            return encoded
        return b"".join((encoded[:-1], b',"features":', *self.features.pieces(), b"}"))

    def generate_request(self) -> GenerateRequest:
        features = None if self.features is None else self.features.to_dict()
        return msgspec.structs.replace(self.request, token_ids=self.ids.to_list(), features=features)
