"""``POST /v1/responses`` (and ``/render``): the OpenAI Responses request with vLLM's extensions.

Items of the input are in `response_items`, tools here. Nothing is stored, so every request carries its whole
history.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

from render_tier.protocol.request_fields import (
    Int64,
    RequestModel,
    StructuredOutputs,
    TopLogprobs,
    check_cache_salt,
    check_stop_count,
    check_structured_outputs,
)
from render_tier.protocol.response_items import InputItem, check_input
from render_tier.protocol.validation import invalid, misshapen, validate_as

LOGPROBS: Final = "message.output_text.logprobs"
HOSTED_TOOLS: Final = frozenset(
    {
        *("file_search", "computer", "computer_use_preview", "web_search", "web_search_2025_08_26", "mcp"),
        *("code_interpreter", "programmatic_tool_calling", "image_generation", "local_shell", "shell"),
        *("tool_search", "web_search_preview", "web_search_preview_2025_03_11", "apply_patch"),
    }
)
"""Tools that OpenAI's servers run. They are accepted and not shown to the model, as in vLLM."""
CHOICES_OF_OTHERS: Final = HOSTED_TOOLS | {"computer_use"}

Status = Literal["in_progress", "completed", "incomplete"]


class FunctionTool(RequestModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class CustomTool(RequestModel):
    """A tool whose input is free text; the model is shown a function with one string."""

    type: Literal["custom"]
    name: str
    description: str | None = None


class NamespaceTool(RequestModel):
    """Functions that the model knows as ``<namespace>__<name>``."""

    type: Literal["namespace"]
    name: str
    description: str
    tools: list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]]


class HostedTool(RequestModel):
    type: str


ResponseTool = FunctionTool | CustomTool | NamespaceTool | HostedTool
TOOL_MODELS: Final[dict[str, type[FunctionTool] | type[CustomTool] | type[NamespaceTool]]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
}


class NamedChoice(RequestModel):
    type: Literal["function", "custom"]
    name: str


class AllowedTools(RequestModel):
    """A choice among some of the tools: the mode counts, the list is not enforced."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class OtherChoice(RequestModel):
    """A tool that is not run here; nothing is demanded of the model then, as in vLLM."""

    type: str


class Reasoning(RequestModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class PlainText(RequestModel):
    type: Literal["text"]


class JsonObject(RequestModel):
    type: Literal["json_object"]


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    name: str
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextConfig(RequestModel):
    format: Annotated[PlainText | JsonObject | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Input = Annotated[
    str | list[InputItem],
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]
"""Items are read before pydantic sees them."""
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]


class ResponsesRequest(RequestModel):
    background: bool | None = False
    include: list[Include] | None = None
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    logit_bias: dict[str, float] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    previous_input_messages: list[Any] | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedTools | OtherChoice = "auto"
    tools: list[ResponseTool] = Field(default_factory=list)
    top_logprobs: TopLogprobs = 0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = None

    watermarking: bool | None = None
    request_id: str = ""
    session_id: str | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @classmethod
    def parse(cls, data: dict[str, Any], *, max_stop_strings: int = 4) -> ResponsesRequest:
        """A checked request from a decoded JSON object. Raises BadRequest."""
        check_cache_salt(data)
        if data.get("background") and not data.get("store", True):
            raise invalid("background can only be used when `store` is true", "background")
        if data.get("prompt") is not None:
            raise invalid("prompt template is not supported", "prompt")
        checked = dict(data)
        if "input" in data:
            checked["input"] = check_input(data["input"])
        if "tools" in data:
            checked["tools"] = _check_tools(data["tools"])
        if "tool_choice" in data:
            checked["tool_choice"] = _check_choice(data["tool_choice"])
        if not checked.get("tools"):
            _check_choice_without_tools(data.get("tool_choice", "auto"))
            checked["tool_choice"] = "none"
        check_structured_outputs(data, param=None)
        check_stop_count(data, max_stop_strings)
        return validate_as(cls, checked)

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def continues_final_message(self) -> bool:
        """Whether the last item is one that the model is to go on with."""
        return not isinstance(self.input, str) and bool(self.input) and self.input[-1].unfinished


def _check_tools(tools: Any) -> list[ResponseTool]:
    if not isinstance(tools, list):
        entry = {"type": "list_type", "loc": ("tools",), "msg": "Input should be a valid list"}
        raise misshapen([{**entry, "input": tools}])
    return [_check_tool(index, tool) for index, tool in enumerate(tools)]


def _check_tool(index: int, tool: Any) -> ResponseTool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind in HOSTED_TOOLS:
        return HostedTool(type=kind)
    if not isinstance(kind, str) or kind not in TOOL_MODELS:
        message = f"Input tag {str(kind)[:100]!r} is no type of tool"
        raise misshapen(
            [{"type": "union_tag_invalid", "loc": ("tools", index), "msg": message, "input": tool}]
        )
    given_format = tool.get("format")
    if kind == "custom" and isinstance(given_format, dict) and given_format.get("type") == "grammar":
        raise invalid(
            "Custom tools with a grammar format are not supported; only free-form text custom tools are "
            "accepted.",
            "tools",
        )
    return validate_as(TOOL_MODELS[kind], tool, within=("tools", index))


def _check_choice(choice: Any) -> Any:
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        if not choice.get("name"):
            raise invalid("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
        return validate_as(NamedChoice, choice, within=("tool_choice",))
    if kind == "allowed_tools":
        return validate_as(AllowedTools, choice, within=("tool_choice",))
    if isinstance(kind, str) and kind in CHOICES_OF_OTHERS:
        return OtherChoice(type=kind)
    message = "Input should be 'none', 'auto', 'required' or a choice of a tool"
    raise misshapen([{"type": "literal_error", "loc": ("tool_choice",), "msg": message, "input": choice}])


def _check_choice_without_tools(choice: Any) -> None:
    if choice == "required":
        raise invalid("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        raise invalid("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
