"""Hops 2 and 3: ``POST /inference/v1/generate``, token IDs in, token IDs out (vLLM's tokens-only contract).

Unknown fields are ignored on decode. Absent sampling fields take the engine defaults written here.
"""

from __future__ import annotations

from typing import Any

import msgspec


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Engine-side sampling parameters; the defaults are vLLM's dataclass defaults."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = None
    """Always sent by us. Absent means "fill the context" to an engine, never vLLM's default of 16."""
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    logprob_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: dict[str, Any] | None = None
    stream_interval: int | None = None
    output_kind: int = 0
    """0 cumulative, 1 delta (streams), 2 final only."""
    extra_args: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    watermarking: bool | None = None
    repetition_detection: dict[str, int] | None = None
    routed_experts_prompt_start: int = 0


class KVTransferParams(msgspec.Struct, omit_defaults=False, kw_only=True):
    """What a prefill engine returns with ``do_remote_decode`` and a decode engine takes with
    ``do_remote_prefill``.

    Field names are those of vLLM's NIXL connector. ``remote_blocks_expiry_time`` is Unix seconds or null.
    The orchestrator treats the object as opaque apart from the completeness check.
    """

    do_remote_prefill: bool = False
    do_remote_decode: bool = False
    remote_block_ids: list[list[int]] | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int | None = None
    remote_blocks_expiry_time: float | None = None
    transfer_mode: str = "pull"
    remote_prefill_cached_tokens: int = 0


REQUIRED_REMOTE_FIELDS = (
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
)
"""Without any one of these a real engine hangs or dies, so nothing incomplete may reach it."""


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class ContinuationReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Ours: what became of a chat request's ``continuation``."""

    exact: bool
    """The prompt begins with all of the IDs given, and spells what a whole render spells."""
    kept_tokens: int
    """How many of the IDs given the prompt begins with."""
    reason: str | None = None
    """Why it is not exact: one of `rendering.continuation_reasons.REASONS`."""
    message: int | None = None
    """Index of the message that differs."""
    detail: str | None = None


class ContentPlace(msgspec.Struct, kw_only=True):
    """Ours: where one of ``content_parts`` stands, and what engines make of it."""

    offset: int
    length: int
    """Of what stands for it in the request's ``token_ids``."""
    token_ids: list[int]
    """Those that stand there when the engine has put the image in."""


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The render reply and the generate request. ``kv_transfer_params`` stays a plain dict: it is opaque."""

    request_id: str | None = None
    token_ids: list[int]
    sampling_params: SamplingParams
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    cache_salt: str | None = None
    priority: int = 0
    features: dict[str, Any] | None = None
    content_parts: list[Any] | None = None
    content_places: list[ContentPlace] | msgspec.UnsetType = msgspec.UNSET
    """In the order of ``content_parts``."""
    token_offsets: list[tuple[int, int]] | None = None
    """Character ``[start, end]`` of each prompt token in the templated text, when asked for."""
    reasoning_ended: bool | None = None
    """Whether the prompt already closed reasoning; null leaves the decision to the engine's own parser."""
    reasoning_parser_kwargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Ours (ignored by vLLM): what render repaired in the request, such as malformed history arguments."""
    continuation: ContinuationReport | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprob(msgspec.Struct):
    """Sampled token's logprob; ``top_logprobs`` starts with the sampled token. Minus infinity travels as
    -9999.0.
    """

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TopLogprob] = []


class ChoiceLogprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int | None = None


class GenerateUsage(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: dict[str, int] | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt; None when the engine does not report them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details is not None else None


class GenerateChoice(msgspec.Struct, kw_only=True):
    """``token_ids`` include the stop or EOS token. ``stop_reason`` is a stop string, a stop token ID or
    null.
    """

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChoiceLogprobs | None = None


class RequestMetrics(msgspec.Struct):
    """Timings that some engines report; passed on to the client."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: dict[str, Any] | None = None


class GenerateResponse(msgspec.Struct, kw_only=True):
    """Whole answer of one generate call."""

    request_id: str
    choices: list[GenerateChoice]
    model: str | None = None
    created: int | None = None
    usage: GenerateUsage | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: RequestMetrics | None = None
    output_mode: str = "tokens"


class GenerateChunk(msgspec.Struct, kw_only=True):
    """One SSE ``data:`` object. ``choices`` holds one choice, or none in the usage chunk that ends a stream.

    ``created`` is ours (ignored by vLLM): when the orchestrator sets it, derender stamps it on every chunk.
    """

    request_id: str
    choices: list[GenerateChoice]
    usage: GenerateUsage | None = None
    created: int | None = None
    prompt_token_ids: list[int] | None = None
    metrics: RequestMetrics | None = None
    output_mode: str = "tokens"


class AbortRequest(msgspec.Struct):
    """``POST /inference/v1/abort_requests``: IDs exactly as the engine returned them."""

    request_ids: list[str]
