"""The hop of one image to an encoder, whose only yield is where engines find what it has made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.hops.errors import GivenUp
from orchestrator.hops.generate import whole_answer
from orchestrator.hops.transport import Transport


class EncodeClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def encode(
        self, base_url: str, request: Mapping[str, Any], headers: Mapping[str, str], budget: float
    ) -> dict[str, Any] | None:
        """The answer's ``ec_transfer_params``, not yet judged. Raises ``HopError``."""
        answer = await whole_answer(self._transport, "encode", base_url, request, headers, budget)
        if any(choice.finish_reason == "abort" for choice in answer.choices):
            raise GivenUp("encode", "the encoder gave the request up")
        return answer.ec_transfer_params
