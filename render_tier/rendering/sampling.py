"""A request's sampling fields as engine parameters: defaults, clamps and ranges of vLLM's SamplingParams.

A value comes from the request, else from the model's generation config, else from OpenAI's defaults. What an
engine would refuse or die of is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.generate import SamplingParams
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.validation import invalid, summarise

OPENAI_DEFAULTS: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
"""Smaller positive temperatures overflow in the engine and are raised to this."""
MAX_LOGPROB_TOKEN_IDS = 128
"""Width of a row in the engine's sampler."""
OUTPUT_DELTA, OUTPUT_FINAL = 1, 2


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """What the model and the operator fix for every request."""

    generation_config: Mapping[str, Any]
    max_tokens_cap: int | None
    """A hard cap: the operator's max_new_tokens, which the model's own is not."""
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_model_len: int
    max_logprobs: int
    max_choices: int


class SamplingBuilder:
    def __init__(self, defaults: SamplingDefaults) -> None:
        self._defaults = defaults

    def max_tokens(self, asked: int | None, prompt_length: int) -> int:
        """Output tokens granted: as asked, within what the prompt leaves and the operator's cap."""
        defaults = self._defaults
        wanted = asked if asked is not None else defaults.generation_config.get("max_new_tokens")
        bounds = (defaults.max_model_len - prompt_length, wanted, defaults.max_tokens_cap)
        return min(bound for bound in bounds if bound is not None)

    def check_asked(self, asked: int | None, field: str) -> None:
        """More output than the context has is a mistake, not something to clamp."""
        if asked is not None and asked > self._defaults.max_model_len:
            raise invalid(
                f"{field}={summarise(asked)} cannot be greater than "
                f"max_model_len={self._defaults.max_model_len}. Please request fewer output tokens.",
                field,
                asked,
            )

    def build(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        *,
        max_tokens: int,
        skip_special_tokens: bool,
        constraint: dict[str, Any] | None,
    ) -> SamplingParams:
        """Raises BadRequest for the first field out of range."""
        chosen = {name: self._chosen(request, name) for name in OPENAI_DEFAULTS}
        if 0 < chosen["temperature"] < LOWEST_TEMPERATURE:
            chosen["temperature"] = LOWEST_TEMPERATURE
        stop = [request.stop] if isinstance(request.stop, str) else (request.stop or [])
        logprobs, prompt_logprobs = _logprobs(request)
        params = SamplingParams(
            n=1 if request.n is None else request.n,
            **chosen,
            seed=None if request.seed == -1 else request.seed,
            stop=stop or None,
            stop_token_ids=self._stop_token_ids(request),
            bad_words=list(dict.fromkeys(request.bad_words)) or None,
            ignore_eos=request.ignore_eos,
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logprob_token_ids=request.logprob_token_ids or None,
            logit_bias=self._logit_bias(request.logit_bias),
            allowed_token_ids=request.allowed_token_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            include_stop_str_in_output=request.include_stop_str_in_output,
            structured_outputs=constraint,
            stream_interval=request.stream_interval,
            output_kind=OUTPUT_DELTA if request.stream else OUTPUT_FINAL,
            extra_args=_extra_args(request),
            thinking_token_budget=request.thinking_token_budget,
            watermarking=request.watermarking,
            repetition_detection=_repetition_detection(request),
            routed_experts_prompt_start=request.routed_experts_prompt_start,
        )
        self._check(params)
        if params.temperature < GREEDY_BELOW:
            params.top_p, params.top_k, params.min_p = 1.0, 0, 0.0
            if params.n > 1:
                raise invalid(f"n must be 1 when using greedy sampling, got {summarise(params.n)}.")
        return params

    def _chosen(self, request: SamplingFields, name: str) -> Any:
        given = getattr(request, name)
        if given is not None:
            return given
        return self._defaults.generation_config.get(name, OPENAI_DEFAULTS[name])

    def _stop_token_ids(self, request: SamplingFields) -> list[int] | None:
        """The request's, and the EOS IDs: an engine without a tokenizer knows no others."""
        eos = () if request.ignore_eos else self._defaults.eos_token_ids
        return list(dict.fromkeys([*(request.stop_token_ids or ()), *eos])) or None

    def _logit_bias(self, given: dict[str, float] | None) -> dict[str, float] | None:
        if given is None:
            return None
        wrong = [key for key in given if not _is_integer(key)]
        if wrong:
            raise invalid(
                "logit_bias contains key(s) that cannot be converted to integer token IDs: "
                f"{[key[:40] for key in wrong[:5]]!r}",
                "logit_bias",
                given,
            )
        self._check_ids([int(key) for key in given], "logit_bias", given)
        return {str(int(key)): min(100.0, max(-100.0, bias)) for key, bias in given.items()}

    def _check(self, params: SamplingParams) -> None:
        defaults = self._defaults
        if params.n < 1:
            raise invalid(f"n must be at least 1, got {summarise(params.n)}.")
        if params.n > defaults.max_choices:
            raise invalid(f"n must be at most {defaults.max_choices}, got {summarise(params.n)}.")
        for name, accepts, wording, named in RANGES:
            value = getattr(params, name)
            if not accepts(value):
                raise invalid(
                    f"{name} {wording}, got {summarise(value)}.",
                    name if named else None,
                    value if named else None,
                )
        assert params.max_tokens is not None
        if params.max_tokens < 1:
            raise invalid(
                f"max_tokens must be at least 1, got {summarise(params.max_tokens)}.",
                "max_tokens",
                params.max_tokens,
            )
        if params.min_tokens > params.max_tokens:
            raise invalid(
                f"min_tokens must be less than or equal to max_tokens={params.max_tokens}, "
                f"got {summarise(params.min_tokens)}."
            )
        if any(not text for text in params.stop or ()):
            raise invalid("stop cannot contain an empty string.")
        if any(not word for word in params.bad_words or ()):
            raise invalid("bad_words cannot contain an empty string.")
        self._check_logprobs(params)
        self._check_ids(params.stop_token_ids or [], "stop_token_ids")
        self._check_ids(params.logprob_token_ids or [], "logprob_token_ids")
        if params.allowed_token_ids is not None:
            if not params.allowed_token_ids:
                raise invalid("allowed_token_ids is not None and empty!", "allowed_token_ids")
            self._check_ids(params.allowed_token_ids, "allowed_token_ids")

    def _check_logprobs(self, params: SamplingParams) -> None:
        most = self._defaults.vocab_size if self._defaults.max_logprobs == -1 else self._defaults.max_logprobs
        for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            asked = getattr(params, name)
            if asked is None:
                continue
            if asked < -1:
                raise invalid(f"{name} must be non-negative or -1, got {summarise(asked)}.", name, asked)
            count = self._defaults.vocab_size if asked == -1 else asked
            if count > most:
                raise invalid(
                    f"Requested {kind} logprobs of {summarise(count)}, "
                    f"which is greater than max allowed: {most}",
                    name,
                    count,
                )
        count = len(params.logprob_token_ids or ())
        if count > MAX_LOGPROB_TOKEN_IDS:
            raise invalid(
                f"Requested logprob_token_ids of length {count}, which is greater than max allowed: "
                f"{MAX_LOGPROB_TOKEN_IDS}",
                "logprob_token_ids",
                count,
            )

    def _check_ids(self, ids: list[int], param: str, given: object = None) -> None:
        """``given``: what the request has as ``param``, if that is no list of IDs."""
        size = self._defaults.vocab_size
        wrong = [token_id for token_id in ids if not 0 <= token_id < size]
        if wrong:
            raise invalid(
                f"token_id(s) {[summarise(token_id) for token_id in wrong[:5]]} in {param} contain "
                f"out-of-vocab token ids. Vocabulary size: {size}",
                param,
                wrong if given is None else given,
            )


def _within(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


RANGES: tuple[tuple[str, Callable[[Any], bool], str, bool], ...] = (
    ("presence_penalty", _within(-2.0, 2.0), "must be in [-2, 2]", False),
    ("frequency_penalty", _within(-2.0, 2.0), "must be in [-2, 2]", False),
    ("repetition_penalty", math.isfinite, "must be a finite number", False),
    ("repetition_penalty", lambda value: value > 0.0, "must be greater than zero", False),
    ("temperature", math.isfinite, "must be a finite number", True),
    ("temperature", lambda value: value >= 0.0, "must be non-negative", True),
    ("temperature", lambda value: value <= 2.0, "must be in [0, 2]", True),
    ("top_p", lambda value: 0.0 < value <= 1.0, "must be in (0, 1]", True),
    ("top_k", lambda value: value >= -1, "must be 0 (disable), or at least 1", False),
    ("min_p", _within(0.0, 1.0), "must be in [0, 1]", False),
    ("min_tokens", lambda value: value >= 0, "must be greater than or equal to 0", False),
)
"""Field, test, wording, and whether vLLM names the field in the error's ``param``."""


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> tuple[int | None, int | None]:
    """Logprobs per output and per prompt token; ``echo`` asks for the prompt's as well."""
    if isinstance(request, ChatCompletionRequest):
        counted: int | None = request.top_logprobs
        logprobs = counted if request.logprobs else None
    else:
        counted = logprobs = request.logprobs
    prompt_logprobs = counted if request.prompt_logprobs is None and request.echo else request.prompt_logprobs
    return (None if request.logprob_token_ids else logprobs), prompt_logprobs


def _extra_args(request: SamplingFields) -> dict[str, Any] | None:
    """Custom arguments and transfer params; engines pass them on in messages with 64-bit integers."""
    extra: dict[str, Any] = dict(request.vllm_xargs or {})
    if request.kv_transfer_params:
        extra["kv_transfer_params"] = request.kv_transfer_params
    if request.ec_transfer_params:
        extra["ec_transfer_params"] = request.ec_transfer_params
    waiting: list[Any] = [extra]
    while waiting:
        value = waiting.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise invalid("extra_args integers must be between -2**63 and 2**64 - 1.", "extra_args")
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return extra or None


def _repetition_detection(request: SamplingFields) -> dict[str, int] | None:
    given = request.repetition_detection
    if given is None:
        return None
    if given.max_pattern_size < 0 or not 0 <= given.min_pattern_size <= given.max_pattern_size:
        raise invalid(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
            "Set both to 0 to disable repetitive pattern detection."
        )
    if given.max_pattern_size > 0 and given.min_count < 2:
        raise invalid(
            "min_count must be >= 2 to detect repetitive patterns in engine output. If you do not wish to "
            "detect repetitive patterns, set max_pattern_size to 0."
        )
    return given.model_dump()
