"""``POST /v1/completions`` (and ``/render``): the OpenAI completions request with vLLM's extensions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PrivateAttr, WithJsonSchema

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.request_fields import (
    SamplingFields,
    apply_mm_alias,
    check_cache_salt,
    check_logprobs,
    check_response_format,
    check_stop_count,
    check_stream_options,
    check_structured_outputs,
)
from render_tier.protocol.validation import invalid, misshapen, validate_as

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]
"""One prompt: text, or token IDs."""


PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    ]
}


class CompletionRequest(SamplingFields):
    prompt: Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]
    """As sent; `prompts` has it checked. Not validated here: a prompt of 100,000 IDs is checked once."""
    logprobs: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    n: int = 1
    suffix: str | None = None
    add_special_tokens: bool = True

    _prompts: list[Prompt] = PrivateAttr(default_factory=list)

    @classmethod
    def parse(
        cls, data: dict[str, Any], *, max_stop_strings: int = 4, max_prompts: int = 1024
    ) -> CompletionRequest:
        """A checked request from a decoded JSON object. Raises BadRequest."""
        prompts = _prompts(data, max_prompts)
        check_stream_options(data)
        _check_completion_logprobs(data)
        check_structured_outputs(data, param="structured_outputs")
        check_response_format(data)
        if data.get("max_tokens") is None:
            data = {**data, "max_tokens": DEFAULT_MAX_TOKENS}
        check_cache_salt(data)
        check_stop_count(data, max_stop_strings)
        request = validate_as(cls, apply_mm_alias(data))
        request._prompts = prompts
        return request

    @property
    def prompts(self) -> list[Prompt]:
        return self._prompts


def _prompts(data: dict[str, Any], max_prompts: int) -> list[Prompt]:
    """The prompts as a list: ``prompt`` may be text, token IDs, or a list of either."""
    if data.get("prompt_embeds"):
        raise invalid("You must set `--enable-prompt-embeds` to input `prompt_embeds`", "prompt_embeds")
    prompt = data.get("prompt")
    if prompt is None or prompt == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _wrong_prompt(("prompt",), prompt)
    if not prompt:
        raise BadRequest("You must pass at least one prompt")
    if all(isinstance(item, int | float) for item in prompt):
        return [_token_ids(prompt, ("prompt",))]
    if len(prompt) > max_prompts:
        raise invalid(
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {max_prompts}.", "prompt"
        )
    if all(isinstance(item, str) for item in prompt):
        return list(prompt)
    if all(isinstance(item, list) for item in prompt):
        return [_token_ids(item, ("prompt", index)) for index, item in enumerate(prompt)]
    raise _wrong_prompt(("prompt",), prompt)


def _token_ids(ids: list[Any], location: tuple[object, ...]) -> list[int]:
    """Whole floats and booleans count as the integers they equal, as in vLLM."""
    if not all(type(item) is int for item in ids):
        ids = [int(item) if isinstance(item, float | bool) and item == item // 1 else item for item in ids]
    for position, item in enumerate(ids):
        if type(item) is not int:
            raise _wrong_prompt((*location, position), item)
        if item < 0:
            message = "Input should be greater than or equal to 0"
            entry = {
                "type": "greater_than_equal",
                "loc": (*location, position),
                "msg": message,
                "input": item,
            }
            raise misshapen([entry])
    return ids


def _wrong_prompt(location: tuple[object, ...], value: Any) -> Exception:
    message = "Input should be a string, a list of strings, a list of token IDs or a list of such lists"
    return misshapen([{"type": "prompt_type", "loc": location, "msg": message, "input": value}])


def _check_completion_logprobs(data: dict[str, Any]) -> None:
    wants_ids = bool(data.get("logprob_token_ids"))
    if data.get("use_beam_search") and data.get("echo") and data.get("logprobs") is not None:
        raise invalid(
            "`echo` with `logprobs` is not supported with beam search because beam search does not compute "
            "prompt logprobs.",
            "echo",
        )
    if wants_ids and data.get("echo") and data.get("max_tokens") == 0:
        raise invalid(
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no output "
            "tokens are generated.",
            "logprob_token_ids",
        )
    if wants_ids and data.get("logprobs") is None:
        raise invalid("when using `logprob_token_ids`, `logprobs` must be set.", "logprob_token_ids")
    check_logprobs(data, "logprobs")
