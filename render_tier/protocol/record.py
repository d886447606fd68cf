"""The record of an answer: exactly what the model saw and sampled. Ours; in the field ``record`` of chat and
text completions for requests with ``return_token_ids``; of a stream in its usage chunk, if that is asked for.

It is lossless: the generate responses, given to derender with the client's own request, are the answer again;
cut by ``chunk_lens``, its stream.
"""

from __future__ import annotations

from typing import Any

import msgspec

from render_tier.protocol.generate import GenerateChoice, GenerateUsage


class WeightVersions(msgspec.Struct):
    """Output tokens ``start`` up to ``end`` (not with it) were sampled by weights of this name."""

    version: str
    start: int
    end: int


class RecordedChoice(GenerateChoice, kw_only=True):
    """``token_ids`` are all that was read of the engine, also what a stop string has cut off the answer, and
    ``finish_reason`` is the engine's: null where a stop string has ended a stream before."""

    chunk_lens: list[int]
    """Tokens of each chunk of a stream, in order; of a whole answer, all in one."""
    weight_versions: list[WeightVersions] | None = None
    """Where the engine reports them."""


class RecordedResponse(msgspec.Struct, kw_only=True):
    """A generate response, of one prompt."""

    request_id: str
    created: int
    choices: list[RecordedChoice]
    usage: GenerateUsage
    prompt_token_ids: list[int]
    prompt_logprobs: list[Any] | None = None


class Record(msgspec.Struct):
    fingerprint: str | None
    """Of the render tier (tokenizer, template, parsers, limits), without which nothing is the same."""
    model: str | None
    """As the client named it."""
    generate_responses: list[RecordedResponse]
    """One for each prompt. Choices of an answer to several prompts are numbered through; here they begin
    with 0 for each."""
