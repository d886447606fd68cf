"""Usage of an answer: what the engine counted, completed by what derender knows."""

from __future__ import annotations

from collections.abc import Sequence

from render_tier.protocol.derender import TokensResponse
from render_tier.protocol.generate import GenerateUsage, PromptTokensDetails
from render_tier.protocol.responses import Usage


def usage(prompt: int, completion: int, engine: GenerateUsage | None, reasoning: int | None) -> Usage:
    """``engine``: for the cached prompt tokens. ``reasoning`` None: no reasoning parser counts them."""
    details = engine.prompt_tokens_details if engine is not None else None
    return Usage(
        prompt,
        prompt + completion,
        completion,
        details,
        None if reasoning is None else {"reasoning_tokens": reasoning},
    )


def summed(responses: Sequence[TokensResponse]) -> GenerateUsage | None:
    """The cached prompt tokens of all answers, when every engine reported them."""
    cached = 0
    for response in responses:
        reported = response.usage.cached_tokens if response.usage is not None else None
        if reported is None:
            return None
        cached += reported
    return GenerateUsage(prompt_tokens_details=PromptTokensDetails(cached))
