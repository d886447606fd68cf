"""``POST /v1/chat/completions`` (and ``/render``): the OpenAI chat request with vLLM's extensions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Strict

from render_tier.protocol.messages import check_messages
from render_tier.protocol.request_fields import (
    RequestModel,
    SamplingFields,
    TopLogprobs,
    apply_mm_alias,
    check_cache_salt,
    check_logprobs,
    check_response_format,
    check_stop_count,
    check_stream_options,
    check_structured_outputs,
)
from render_tier.protocol.validation import invalid, validate_as

NAMED_TOOL_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'


class FunctionDefinition(RequestModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(RequestModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None

    def template_form(self) -> dict[str, Any]:
        """What a chat template sees: description and parameters always, the rest only when given."""
        function = self.function
        form: dict[str, Any] = {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
        }
        if function.strict is not None:
            form["strict"] = function.strict
        deferred = self.defer_loading if function.defer_loading is None else function.defer_loading
        if deferred is not None:
            form["defer_loading"] = deferred
        tool: dict[str, Any] = {"type": self.type, "function": form}
        if self.defer_loading is not None:
            tool["defer_loading"] = self.defer_loading
        return tool


class NamedFunction(RequestModel):
    name: str


class NamedToolChoice(RequestModel):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatTemplateFields(RequestModel):
    """What decides the templated text; shared with ``/tokenize``."""

    messages: list[dict[str, Any]]
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class Continuation(RequestModel):
    """Ours: the turn before, as the model saw and wrote it. ``output_token_ids`` are the engine's, with the
    stop token if there was one."""

    prompt_token_ids: list[Annotated[int, Strict()]]
    output_token_ids: list[Annotated[int, Strict()]]


class ChatCompletionRequest(SamplingFields, ChatTemplateFields):
    logprobs: bool | None = False
    top_logprobs: TopLogprobs = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    documents: list[dict[str, str]] | None = None
    return_prompt_text: bool | None = None
    continuation: Continuation | None = None
    continuation_strict: bool = False
    """Ours: refuse what does not go on from the IDs of ``continuation``, instead of rendering it whole."""

    @classmethod
    def parse(cls, data: dict[str, Any], *, max_stop_strings: int = 4) -> ChatCompletionRequest:
        """A checked request from a decoded JSON object. Raises BadRequest."""
        _check_generation_prompt(data)
        data = _check_tools(data)
        check_structured_outputs(data, param=None)
        _check_structured_outputs_with_tools(data)
        _check_chat_logprobs(data)
        check_stream_options(data)
        check_response_format(data)
        check_cache_salt(data)
        check_stop_count(data, max_stop_strings)
        data = apply_mm_alias(data)
        if "messages" in data:
            data = {**data, "messages": check_messages(data["messages"])}
        return validate_as(cls, data)

    @property
    def forced_function(self) -> str | None:
        """Name of the function that ``tool_choice`` demands, if it names one."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, NamedToolChoice) else None


def _check_generation_prompt(data: dict[str, Any]) -> None:
    if data.get("continue_final_message") and data.get("add_generation_prompt"):
        raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _check_tools(data: dict[str, Any]) -> dict[str, Any]:
    """Availability and agreement of ``tools`` and ``tool_choice``; tools alone mean "auto"."""
    tools = data.get("tools")
    if tools == []:
        raise invalid(
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    if "tool_choice" not in data and tools:
        return {**data, "tool_choice": "auto"}
    choice = data.get("tool_choice")
    if choice is None or choice == "none":
        return data
    if tools is None:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice not in ("auto", "required") and not isinstance(choice, dict):
        raise invalid(
            f"Invalid value for `tool_choice`: {str(choice)[:100]}! "
            'Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    if isinstance(choice, dict):
        _check_named_tool(choice, tools)
    return data


def _check_named_tool(choice: dict[str, Any], tools: Any) -> None:
    function = choice.get("function")
    if not isinstance(function, dict):
        raise invalid(
            f"Invalid value for `function`: `{str(function)[:100]}` in `tool_choice`! {NAMED_TOOL_USAGE}",
            "tool_choice.function",
        )
    if "name" not in function:
        raise invalid(
            f"Expected field `name` in `function` in `tool_choice`! {NAMED_TOOL_USAGE}",
            "tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise invalid(
            f"Invalid `name` in `function`: `{str(name)[:100]}` in `tool_choice`! {NAMED_TOOL_USAGE}",
            "tool_choice.function.name",
        )
    well_formed = isinstance(tools, list) and all(
        isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools
    )
    if well_formed and not any(tool["function"].get("name") == name for tool in tools):
        raise invalid(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
        )


def _check_structured_outputs_with_tools(data: dict[str, Any]) -> None:
    given = data.get("structured_outputs")
    if (
        isinstance(given, dict)
        and any(given.get(kind) is not None for kind in ("json", "regex", "choice"))
        and data.get("tool_choice", "none") not in ("none", "auto", "required")
    ):
        raise invalid("You can only either use constraints for structured outputs or tools, not both.")


def _check_chat_logprobs(data: dict[str, Any]) -> None:
    if data.get("logprob_token_ids") and not data.get("use_beam_search") and not data.get("logprobs"):
        raise invalid("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
    check_logprobs(data, "top_logprobs")
    top = data.get("top_logprobs")
    if top is not None and (top == -1 or top > 0) and not data.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
