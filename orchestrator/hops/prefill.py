"""Hop 2: one token on a prefill engine, whose only yield is the transfer params (and prompt logprobs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.core.kv_params import ENGINE_ID_PREFIX
from orchestrator.hops.errors import HopName
from orchestrator.hops.generate import whole_answer
from orchestrator.hops.messages import present
from orchestrator.hops.transport import Transport, encode

ABORT = "/inference/v1/abort_requests"


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prefill answer, not yet judged."""

    finish_reason: str | None
    kv_params: dict[str, Any] | None
    cached_tokens: int | None
    prompt_logprobs: msgspec.Raw | None
    model: str | None
    """The name that it serves the model by."""


class PrefillClient:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def prefill(
        self, base_url: str, request: Mapping[str, Any], headers: Mapping[str, str], budget: float
    ) -> Prefilled:
        """Raises ``HopError``."""
        answer = await whole_answer(self._transport, "prefill", base_url, request, headers, budget)
        return Prefilled(
            finish_reason=answer.choices[0].finish_reason if answer.choices else None,
            kv_params=answer.kv_transfer_params,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            prompt_logprobs=present(answer.prompt_logprobs),
            model=answer.model,
        )


async def abort(transport: Transport, hop: HopName, base_url: str, request_id: str, budget: float) -> None:
    """Ask an engine to drop a leg, by the id we gave it (the engine knows it with a prefix). Unknown ids are
    no error. Raises ``HopError``."""
    body = encode({"request_ids": [ENGINE_ID_PREFIX + request_id]})
    await transport.call(hop, "POST", base_url + ABORT, body, budget=budget)
