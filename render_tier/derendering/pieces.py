"""Parts of answers that whole and streamed ones share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw

from render_tier.core.events import Event, Text
from render_tier.core.table import Region
from render_tier.derendering.context import Context, Kind
from render_tier.derendering.output import Step
from render_tier.protocol.derender import TokensChoice, given
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.generate import GenerateUsage
from render_tier.protocol.responses import LogprobsOut
from render_tier.protocol.validation import misshapen

REQUEST_FIELDS: Mapping[Kind, str] = {
    "chat": "chat_request",
    "completion": "completion_request",
    "messages": "messages_request",
    "responses": "responses_request",
}
"""What the client's own request is called in a derender call."""


def logprobs(step: Step) -> LogprobsOut | None:
    return None if step.logprobs is None else LogprobsOut(step.logprobs)


def content(events: Sequence[Event]) -> str:
    return "".join([event.text for event in events if type(event) is Text and event.region is Region.CONTENT])


def token_ids(choice: TokensChoice, step: Step, context: Context) -> list[int] | None:
    """The IDs that count, where the request asks for them."""
    return (choice.token_ids or [])[: step.used] if context.returns_token_ids else None


def passed_on(prompt_token_ids: Raw, context: Context) -> Raw | None:
    return prompt_token_ids if context.returns_token_ids and given(prompt_token_ids) else None


def needs_request(kind: Kind) -> BadRequest:
    return BadRequest(
        f"{REQUEST_FIELDS[kind]} is required when a tool or reasoning parser is configured because plain "
        "detokenization would leak raw parser markup into content."
    )


def missing(name: str) -> BadRequest:
    return misshapen([{"type": "missing", "loc": (name,), "msg": "Field required"}])


def prompt_length(said: int | None, context: Context, counted: GenerateUsage | None) -> int:
    """Tokens of the prompt: as ``said`` by the caller, else as in the context, else as the engine counted."""
    if said is not None:
        return said
    if context.prompt_length or counted is None:
        return context.prompt_length
    return counted.prompt_tokens
