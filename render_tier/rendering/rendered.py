"""A rendered prompt: the GenerateRequest, with its token IDs as the parts that they came in."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.token_ids import PromptIds


@dataclass(frozen=True)
class Rendered:
    request: GenerateRequest
    """Complete but for ``token_ids``, which are `ids`."""
    ids: PromptIds

    def encode(self, *, compact: bool = False) -> bytes:
        """The GenerateRequest as JSON; ``compact``: with ``token_ids`` as `PromptIds.base64`."""
        fields = {name: getattr(self.request, name) for name in self.request.__struct_fields__}
        fields["token_ids"] = self.ids.base64() if compact else msgspec.Raw(self.ids.json())
        return msgspec.json.encode(
            {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        )

    def generate_request(self) -> GenerateRequest:
        return msgspec.structs.replace(self.request, token_ids=self.ids.to_list())
