"""vLLM's ``/inference/v1/generate``: chunks of token IDs, a usage chunk if asked for, then ``[DONE]``.

The chunks and whole answers are `orchestrator.core.token_out`'s.
"""

from __future__ import annotations

from typing import Any

import msgspec

from orchestrator.core.dialects.dialect import StreamEnd
from orchestrator.core.dialects.openai import OpenAI
from orchestrator.core.sse import DONE_FRAME, frame


class Tokens(OpenAI):
    def __init__(self) -> None:
        super().__init__("generate-tokens-", "")

    def end(self, end: StreamEnd) -> bytes:
        """The usage chunk says nothing of what is not known."""
        fields: dict[str, Any] = dict(end.extra)
        if end.usage is not None:
            known = {name: value for name, value in end.usage.as_json().items() if value is not None}
            fields = {"usage": known, **fields}
        if not fields:
            return DONE_FRAME
        last = {"request_id": end.response_id, **fields, "output_mode": "tokens", "choices": []}
        return frame(msgspec.json.encode(last)) + DONE_FRAME
