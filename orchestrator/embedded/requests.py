"""The generate request: from a client's bytes to a checked job, or vLLM's error for a tokens-only engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.embedded.sampler import SamplingSettings
from orchestrator.embedded.transfer_client import KVTransferError
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.generate import REQUIRED_REMOTE_FIELDS, KVTransferParams
from render_tier.protocol.validation import decode_object, validate_as

Role = Literal["prefill", "decode", "both"]

MAX_LOGIT_BIAS: Final = 100.0
MAX_REPETITION_PENALTY: Final = 1e6
"""And its inverse is the least: float32 logits that are multiplied or divided by it stay finite."""
"""OpenAI's bound; larger values are clamped to it."""


class StreamOptionsBody(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingBody(BaseModel):
    """``sampling_params`` as they travel; null means the default."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    stream_interval: int | None = None
    extra_args: dict[str, Any] | None = None


class GenerateBody(BaseModel):
    """Unknown fields are ignored. Multimodal inputs are refused: the engine computes text models."""

    model_config = ConfigDict(extra="ignore")

    token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    sampling_params: SamplingBody
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptionsBody | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    features: dict[str, Any] | None = None
    content_parts: list[Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class EngineLimits:
    """What a request is checked against."""

    served_names: tuple[str, ...]
    role: Role
    vocab_size: int
    max_model_len: int
    max_sequences: int
    max_logprobs: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class RemoteKV:
    """Where the prompt's KV is held; from ``kv_transfer_params`` of a prefill engine."""

    host: str
    port: int
    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True)
class GenerateCall:
    """A request that may run. ``hold``: keep the prompt's KV for a decode engine."""

    request_id: str | None
    model: str
    prompt: tuple[int, ...]
    n: int
    settings: SamplingSettings
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stream_interval: int
    return_token_ids: bool
    hold: bool
    remote: RemoteKV | None


def parse_generate(body: bytes, limits: EngineLimits) -> GenerateCall:
    """Raises BadRequest, NotFound or KVTransferError."""
    request = validate_as(GenerateBody, decode_object(body))
    model = request.model or limits.served_names[0]
    if model not in limits.served_names:
        aliases = ", ".join(limits.served_names)
        raise NotFound(f"The model `{model}` does not exist. Valid aliases: {aliases}.", param="model")
    if request.output_mode == "text":
        raise BadRequest(
            "output_mode='text' requires a tokenizer, but this server does not load one "
            "(--tokens-only or --skip-tokenizer-init). Send the request to a server that loads a tokenizer, "
            "or use output_mode='tokens'."
        )
    if request.features is not None or request.content_parts is not None:
        raise BadRequest(
            "This engine serves a text model; multimodal inputs are not supported.", param="features"
        )
    prompt = tuple(request.token_ids)
    _check_prompt(prompt, limits)
    settings, n = _sampling(request.sampling_params, len(prompt), limits)
    stream = bool(request.stream)
    params = request.kv_transfer_params
    if params is None and request.sampling_params.extra_args is not None:
        params = request.sampling_params.extra_args.get("kv_transfer_params")
    hold, remote = _kv_transfer(params, len(prompt), limits)
    if hold and stream:
        raise BadRequest("do_remote_decode cannot be streamed: a stream carries no params.", param="stream")
    if hold and n > 1:
        raise BadRequest(f"do_remote_decode needs n=1, got {n}.", param="n")
    if remote is not None and settings.prompt_logprobs is not None:
        raise BadRequest(
            "prompt_logprobs are not available with do_remote_prefill: the prompt was computed elsewhere.",
            param="prompt_logprobs",
        )
    options = request.stream_options or StreamOptionsBody()
    return GenerateCall(
        request_id=request.request_id,
        model=model,
        prompt=prompt,
        n=n,
        settings=settings,
        stream=stream,
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        stream_interval=request.sampling_params.stream_interval or 1,
        return_token_ids=bool(request.return_token_ids),
        hold=hold,
        remote=remote,
    )


def _check_prompt(prompt: tuple[int, ...], limits: EngineLimits) -> None:
    if len(prompt) > limits.max_model_len:
        raise BadRequest(
            f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of "
            f"{limits.max_model_len}. Make sure that `max_model_len` is no smaller than the number of text "
            "tokens."
        )
    if len(prompt) == limits.max_model_len:
        raise BadRequest(
            f"The decoder prompt (length {len(prompt)}) plus the number of requested output tokens "
            f"(at least 1) is longer than the maximum model length of {limits.max_model_len}."
        )
    largest = max(prompt)
    if largest >= limits.vocab_size:
        raise BadRequest(
            f"Token id {largest} is out of vocabulary. Vocabulary size: {limits.vocab_size}",
            param="token_ids",
        )


def _sampling(body: SamplingBody, prompt_tokens: int, limits: EngineLimits) -> tuple[SamplingSettings, int]:
    """Checked settings and n. The messages are vLLM's."""
    _refuse_unavailable(body)
    n = 1 if body.n is None else body.n
    temperature = _default(body.temperature, 1.0)
    top_p = _default(body.top_p, 1.0)
    top_k = body.top_k or 0
    min_p = _default(body.min_p, 0.0)
    presence = _default(body.presence_penalty, 0.0)
    frequency = _default(body.frequency_penalty, 0.0)
    repetition = _default(body.repetition_penalty, 1.0)
    room = limits.max_model_len - prompt_tokens
    max_tokens = room if body.max_tokens is None else body.max_tokens
    min_tokens = body.min_tokens or 0
    interval = 1 if body.stream_interval is None else body.stream_interval
    finite = (temperature, top_p, min_p, presence, frequency, repetition, *(body.logit_bias or {}).values())
    rules = (
        (all(map(math.isfinite, finite)), None, "sampling_params must be finite numbers."),
        (n >= 1, "n", f"n must be at least 1, got {n}."),
        (-2 <= presence <= 2, None, f"presence_penalty must be in [-2, 2], got {presence}."),
        (-2 <= frequency <= 2, None, f"frequency_penalty must be in [-2, 2], got {frequency}."),
        (repetition > 0, None, f"repetition_penalty must be greater than zero, got {repetition}."),
        (
            1 / MAX_REPETITION_PENALTY <= repetition <= MAX_REPETITION_PENALTY,
            None,
            f"repetition_penalty must be in [{1 / MAX_REPETITION_PENALTY:g}, {MAX_REPETITION_PENALTY:g}],"
            f" got {repetition}.",
        ),
        (temperature >= 0, "temperature", f"temperature must be non-negative, got {temperature}."),
        (temperature <= 2, "temperature", f"temperature must be in [0, 2], got {temperature}."),
        (0 < top_p <= 1, "top_p", f"top_p must be in (0, 1], got {top_p}."),
        (top_k >= -1, None, f"top_k must be 0 (disable), or at least 1, got {top_k}."),
        (0 <= min_p <= 1, None, f"min_p must be in [0, 1], got {min_p}."),
        (max_tokens >= 1, "max_tokens", f"max_tokens must be at least 1, got {max_tokens}."),
        (min_tokens >= 0, None, f"min_tokens must be greater than or equal to 0, got {min_tokens}."),
        (
            min_tokens <= max_tokens,
            None,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
        ),
        (interval >= 1, "stream_interval", f"stream_interval must be at least 1, got {interval}."),
    )
    for holds, param, message in rules:
        if not holds:
            raise BadRequest(message, param=param)
    settings = SamplingSettings(
        temperature=temperature,
        top_p=top_p,
        top_k=max(top_k, 0),
        min_p=min_p,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        seed=None if body.seed == -1 else body.seed,
        min_tokens=min_tokens,
        max_tokens=min(max_tokens, room),
        stop_tokens=frozenset(t for t in body.stop_token_ids or () if 0 <= t < limits.vocab_size),
        eos_tokens=frozenset() if body.ignore_eos else frozenset(limits.eos_token_ids),
        logit_bias=_logit_bias(body.logit_bias, limits),
        allowed_tokens=_allowed_tokens(body.allowed_token_ids, limits),
        logprobs=_logprobs("sample", "logprobs", body.logprobs, limits),
        prompt_logprobs=_logprobs("prompt", "prompt_logprobs", body.prompt_logprobs, limits),
    )
    if n > limits.max_sequences:
        raise BadRequest(
            f"sampling_params.n must be at most the server's max_num_seqs ({limits.max_sequences}), got {n}."
        )
    if n > 1 and settings.greedy:
        raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.")
    return settings, n


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


def _refuse_unavailable(body: SamplingBody) -> None:
    """What needs a tokenizer or a reasoning configuration."""
    if body.stop:
        raise BadRequest(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids."
        )
    if body.structured_outputs is not None:
        raise BadRequest(
            "Structured outputs requires a tokenizer so it can't be used with 'skip_tokenizer_init'"
        )
    if body.thinking_token_budget is not None and body.thinking_token_budget != -1:
        raise BadRequest(
            "thinking_token_budget is set but reasoning_config is not configured. Please set "
            "--reasoning-parser and/or --reasoning-config to use thinking_token_budget."
        )


def _logprobs(kind: str, param: str, count: int | None, limits: EngineLimits) -> int | None:
    if count is None:
        return None
    if count < -1:
        raise BadRequest(f"{param} must be non-negative or -1, got {count}.", param=param)
    wanted = limits.vocab_size if count == -1 else count
    if wanted > limits.max_logprobs:
        raise BadRequest(
            f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: "
            f"{limits.max_logprobs}",
            param=param,
        )
    return wanted


def _logit_bias(bias: dict[str, float] | None, limits: EngineLimits) -> tuple[tuple[int, float], ...]:
    entries: list[tuple[int, float]] = []
    for key, value in (bias or {}).items():
        if not (key.isascii() and key.lstrip("-").isdigit() and len(key) <= 20):
            message = (
                f"logit_bias contains key(s) that cannot be converted to integer token IDs: [{key[:40]!r}]"
            )
            raise BadRequest(message, param="logit_bias")
        entries.append((int(key), max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, value))))
    outside = [token for token, _ in entries if not 0 <= token < limits.vocab_size]
    if outside:
        raise BadRequest(
            f"token_id(s) {outside[:10]} in logit_bias contain out-of-vocab token ids. "
            f"Vocabulary size: {limits.vocab_size}",
            param="logit_bias",
        )
    return tuple(entries)


def _allowed_tokens(tokens: list[int] | None, limits: EngineLimits) -> tuple[int, ...] | None:
    if tokens is None:
        return None
    if not tokens:
        raise BadRequest("allowed_token_ids is not None and empty!", param="allowed_token_ids")
    if not all(0 <= token < limits.vocab_size for token in tokens):
        raise BadRequest("allowed_token_ids contains out-of-vocab token id!", param="allowed_token_ids")
    return tuple(tokens)


def _kv_transfer(params: object, prompt_tokens: int, limits: EngineLimits) -> tuple[bool, RemoteKV | None]:
    """Whether to hold the prompt's KV, and where to get it from."""
    if params is None:
        return False, None
    try:
        known = msgspec.convert(params, KVTransferParams)
    except msgspec.ValidationError as error:
        raise BadRequest(f"kv_transfer_params is malformed: {error}", param="kv_transfer_params") from None
    if known.do_remote_decode and known.do_remote_prefill:
        raise _bad_params("do_remote_decode and do_remote_prefill exclude each other")
    if known.do_remote_decode:
        if limits.role == "decode":
            raise _bad_params("this is a decode engine; do_remote_decode needs a prefill engine")
        return True, None
    if not known.do_remote_prefill:
        return False, None
    if limits.role == "prefill":
        raise _bad_params("this is a prefill engine; do_remote_prefill needs a decode engine")
    missing = [name for name in REQUIRED_REMOTE_FIELDS if getattr(known, name) in (None, "", [])]
    if missing:
        raise _bad_params(f"incomplete, without {', '.join(missing)}")
    groups = known.remote_block_ids or []
    if len(groups) != 1 or not groups[0]:
        raise _bad_params(f"remote_block_ids must be one non-empty group of blocks, got {len(groups)} groups")
    if not 0 < (known.remote_port or 0) < 65536:
        raise _bad_params(f"remote_port must be a TCP port, got {known.remote_port}")
    if known.transfer_mode != "pull":
        raise _bad_params(f"transfer_mode {known.transfer_mode[:40]!r} is not supported; only 'pull' is")
    if known.remote_num_tokens is not None and known.remote_num_tokens != prompt_tokens:
        raise KVTransferError(
            f"The prompt has {prompt_tokens} tokens, the held KV is that of {known.remote_num_tokens}: "
            "not the prompt that was prefilled.",
            param="kv_transfer_params",
        )
    return False, RemoteKV(
        host=str(known.remote_host),
        port=int(known.remote_port or 0),
        engine_id=str(known.remote_engine_id),
        request_id=str(known.remote_request_id),
        block_ids=tuple(groups[0]),
    )


def _bad_params(why: str) -> BadRequest:
    return BadRequest(f"kv_transfer_params: {why}.", param="kv_transfer_params")
