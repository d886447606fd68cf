"""Request fields that chat and completions share, and the rules about them that vLLM applies before types.

Field names, defaults, messages and the order of checks follow vLLM's OpenAI-compatible request models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from render_tier.protocol.validation import invalid, misshapen

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_CACHE_SALT_CHARS = 128
CACHE_SALT_FORBIDDEN = frozenset("@/\\\x00")
MAX_SCHEMA_NESTING = 64
STRUCTURAL_TAG_NESTING = 16
"""Levels that a structural tag may add around its schemas."""


class RequestModel(BaseModel):
    """Unknown fields are accepted and ignored, as OpenAI's API does."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class StreamOptions(RequestModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class StructuredOutputs(RequestModel):
    """At most one of the constraints; the rest are options."""

    json_schema: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


class JsonSchema(RequestModel):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """``structural_tag`` formats keep every field: they are sent on as they came."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None


class RepetitionDetection(RequestModel):
    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


def _thinking_budget(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise invalid(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            value,
        )
    return None if value == -1 else value


ThinkingTokenBudget = Annotated[int | None, BeforeValidator(_thinking_budget)]
TopLogprobs = Annotated[int, BeforeValidator(lambda value: 0 if value is None else value)]
Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]


class SamplingFields(RequestModel):
    """What chat and completions have in common; None means "not given"."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None

    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    echo: bool = False

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Int64 = 0
    request_id: str = ""
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: ThinkingTokenBudget = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None


def check_cache_salt(data: dict[str, Any]) -> None:
    salt = data.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARS or not CACHE_SALT_FORBIDDEN.isdisjoint(salt):
        raise invalid(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain "
            "'@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def check_stream_options(data: dict[str, Any]) -> None:
    if data.get("stream_options") and not data.get("stream"):
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")


def check_response_format(data: dict[str, Any]) -> None:
    given = data.get("response_format")
    if not isinstance(given, dict):
        return
    if given.get("type") == "json_schema" and given.get("json_schema") is None:
        raise invalid(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
            "response_format",
        )
    if given.get("type") == "structural_tag":
        check_structural_tag(given, "response_format")


def check_structured_outputs(data: dict[str, Any], *, param: str | None) -> None:
    """At most one of json, regex and choice; a structural tag must be one. ``param`` is what vLLM reports."""
    given = data.get("structured_outputs")
    if not isinstance(given, dict):
        return
    if sum(given.get(kind) is not None for kind in ("json", "regex", "choice")) > 1:
        raise invalid(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
            param,
        )
    if given.get("structural_tag") is not None:
        check_structural_tag(given["structural_tag"], "structured_outputs")


def check_structural_tag(tag: Any, param: str) -> None:
    """Shape only: an engine compiles the grammar. ``tag`` is an object, or a JSON string of one."""
    wrong = invalid(f"Invalid {param} structural_tag specification.", param)
    if isinstance(tag, str):
        try:
            tag = msgspec.json.decode(tag)
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise wrong from None
        except RecursionError:
            raise _nested_too_deeply() from None
    if not isinstance(tag, dict):
        raise wrong
    check_nesting(tag, MAX_SCHEMA_NESTING + STRUCTURAL_TAG_NESTING)
    tag_format = tag.get("format")
    if "structures" in tag or "triggers" in tag:
        structures, triggers = tag.get("structures"), tag.get("triggers")
        if not (
            isinstance(structures, list)
            and isinstance(triggers, list)
            and all(isinstance(trigger, str) for trigger in triggers)
            and all(
                isinstance(item, dict)
                and isinstance(item.get("begin"), str)
                and isinstance(item.get("end"), str)
                for item in structures
            )
        ):
            raise wrong
    elif not (isinstance(tag_format, dict) and isinstance(tag_format.get("type"), str)):
        raise wrong


def check_nesting(value: Any, limit: int) -> None:
    """Raise BadRequest when objects and arrays nest deeper than ``limit`` levels."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _nested_too_deeply()


def _nested_too_deeply() -> Exception:
    return invalid(
        "The JSON schema is nested too deeply: "
        f"objects and arrays may nest at most {MAX_SCHEMA_NESTING} levels"
    )


def check_logprobs(data: dict[str, Any], counted_field: str) -> None:
    """Rules on raw values of ``prompt_logprobs`` and of ``counted_field`` (top_logprobs or logprobs)."""
    if data.get("logprob_token_ids") and data.get("use_beam_search"):
        raise invalid("`logprob_token_ids` is not supported with beam search.", "logprob_token_ids")
    for name in ("prompt_logprobs", counted_field):
        value = data.get(name)
        if value is not None and not isinstance(value, int | float):
            raise invalid(f"`{name}` must be an integer.", name, value)
    prompt_logprobs = data.get("prompt_logprobs")
    if prompt_logprobs is not None:
        if data.get("stream") and (prompt_logprobs > 0 or prompt_logprobs == -1):
            raise invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if prompt_logprobs < 0 and prompt_logprobs != -1:
            raise invalid(
                "`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", prompt_logprobs
            )
    counted = data.get(counted_field)
    if counted is not None and counted < 0 and counted != -1:
        raise invalid(f"`{counted_field}` must be a positive value or -1.", counted_field, counted)


def apply_mm_alias(data: dict[str, Any]) -> dict[str, Any]:
    """The deprecated ``return_mm_kwargs: false`` means ``mm_payload: "none"``."""
    if data.get("return_mm_kwargs") is False and "mm_payload" not in data:
        return {**data, "mm_payload": "none"}
    return data


def check_stop_count(data: dict[str, Any], limit: int, field: str = "stop") -> None:
    stop = data.get(field)
    if isinstance(stop, list) and len(stop) > limit:
        message = f"List should have at most {limit} items after validation, not {len(stop)}"
        raise misshapen([{"type": "too_long", "loc": (field,), "msg": message, "input": stop}])


def check_lengths(data: dict[str, Any], limits: Mapping[str, int]) -> None:
    """Raises BadRequest for a list in ``data`` that is longer than its limit, before its items are read."""
    for name, limit in limits.items():
        items = data.get(name)
        if isinstance(items, list) and len(items) > limit:
            message = f"List should have at most {limit} items, not {len(items)}"
            raise misshapen([{"type": "too_long", "loc": (name,), "msg": message}])


def structural_tag_json(response_format: ResponseFormat) -> str:
    """The tag as the engine takes it: JSON text of the whole response format."""
    return json.dumps(response_format.model_dump(by_alias=True, exclude={"json_schema"}))
