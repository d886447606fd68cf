"""The hop of one image to an encoder, whose only yield is where engines find what it has made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.hops.errors import GivenUp
from orchestrator.hops.messages import EngineAnswer
from orchestrator.hops.prefill import GENERATE
from orchestrator.hops.transport import Transport, encode, garbled

_decoder = msgspec.json.Decoder(EngineAnswer)


class EncodeClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def encode(
        self, base_url: str, request: Mapping[str, Any], headers: Mapping[str, str], budget: float
    ) -> dict[str, Any] | None:
        """The answer's ``ec_transfer_params``, not yet judged. Raises ``HopError``."""
        url = base_url + GENERATE
        reply = await self._transport.call(
            "encode", "POST", url, encode(request), budget=budget, headers=headers
        )
        try:
            answer = _decoder.decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise garbled("encode", url, error) from error
        if any(choice.finish_reason == "abort" for choice in answer.choices):
            raise GivenUp("encode", "the encoder gave the request up")
        return answer.ec_transfer_params
