"""``POST /v1/messages`` (``/render``, ``/count_tokens``): Anthropic's request with vLLM's extensions.

Names, bounds and the order of checks follow vLLM's models. What the fields mean for a chat is
`anthropic_as_chat`'s business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from render_tier.protocol.request_fields import RequestModel, apply_mm_alias, check_stop_count
from render_tier.protocol.validation import validate_as

TOOL_CHANGES = ("tool_addition", "tool_removal")
MIN_THINKING_BUDGET = 1024
MAX_CACHE_SALT = 1024

Effort = Literal["low", "medium", "high", "xhigh", "max"]
ThinkingDisplay = Literal["summarized", "omitted", "updates"]


class AnthropicTool(RequestModel):
    """A tool of the client's. Those that Anthropic runs itself have no ``input_schema`` and are refused."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None

    @field_validator("input_schema")
    @classmethod
    def _typed(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return schema if "type" in schema else {**schema, "type": "object"}


class ToolReference(RequestModel):
    type: Literal["tool_reference"]
    name: str


class ToolDefinition(RequestModel):
    type: Literal["tool_definition"]
    definition: AnthropicTool


class ContentBlock(RequestModel):
    """Every type of block with the fields of all; which of them matter depends on ``type``."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: Annotated[ToolReference | ToolDefinition, Field(discriminator="type")] | None = None

    @model_validator(mode="after")
    def _has_its_tool(self) -> ContentBlock:
        if self.type in TOOL_CHANGES:
            if self.tool is None:
                raise ValueError(f"tool is required for {self.type} blocks")
            if self.type == "tool_removal" and not isinstance(self.tool, ToolReference):
                raise ValueError("tool_removal only accepts a tool_reference")
        return self


Content = str | list[ContentBlock]


def _without_tool_changes(content: Content | None) -> None:
    for block in content if isinstance(content, list) else ():
        if block.type in TOOL_CHANGES:
            raise ValueError(f'{block.type} blocks are only allowed in messages with role "system"')


class AnthropicMessage(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: Content

    @model_validator(mode="after")
    def _changes_tools_as_system(self) -> AnthropicMessage:
        if self.role != "system":
            _without_tool_changes(self.content)
        return self


class AnthropicToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> AnthropicToolChoice:
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice.name is required when type is 'tool'")
        return self


class JsonOutputFormat(RequestModel):
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(RequestModel):
    effort: Effort | None = None
    format: JsonOutputFormat | None = None


class ThinkingEnabled(RequestModel):
    """``display`` has no effect, as in vLLM: reasoning is always given back."""

    type: Literal["enabled"]
    budget_tokens: int = Field(ge=MIN_THINKING_BUDGET)
    display: ThinkingDisplay | None = None


class ThinkingDisabled(RequestModel):
    type: Literal["disabled"]


class ThinkingAdaptive(RequestModel):
    type: Literal["adaptive"]
    display: ThinkingDisplay | None = None


Thinking = Annotated[ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive, Field(discriminator="type")]


class CountTokensRequest(RequestModel):
    """What decides the prompt; all of ``/v1/messages/count_tokens``."""

    model: str
    messages: list[AnthropicMessage]
    output_config: OutputConfig | None = None
    system: Content | None = None
    thinking: Thinking | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: list[AnthropicTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("model")
    @classmethod
    def _named(cls, model: str) -> str:
        if not model:
            raise ValueError("Model is required")
        return model

    @field_validator("system")
    @classmethod
    def _system_text(cls, system: Content | None) -> Content | None:
        _without_tool_changes(system)
        return system

    @classmethod
    def parse_count(cls, data: dict[str, Any]) -> CountTokensRequest:
        """A checked request from a decoded JSON object. Raises BadRequest."""
        return validate_as(cls, data)


class MessagesRequest(CountTokensRequest):
    max_tokens: int
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_CACHE_SALT)
    watermarking: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None

    @field_validator("max_tokens")
    @classmethod
    def _positive(cls, max_tokens: int) -> int:
        if max_tokens <= 0:
            raise ValueError("max_tokens must be positive")
        return max_tokens

    @model_validator(mode="after")
    def _room_for_an_answer(self) -> MessagesRequest:
        # The prefill leg of a disaggregated request asks for one token and never thinks.
        prefills = bool(self.kv_transfer_params and self.kv_transfer_params.get("do_remote_decode"))
        budget = self.thinking.budget_tokens if isinstance(self.thinking, ThinkingEnabled) else 0
        if not prefills and budget >= self.max_tokens:
            raise ValueError("thinking.budget_tokens must be less than max_tokens")
        return self

    @classmethod
    def parse(cls, data: dict[str, Any], *, max_stop_strings: int = 4) -> MessagesRequest:
        """A checked request from a decoded JSON object. Raises BadRequest."""
        check_stop_count(data, max_stop_strings, "stop_sequences")
        return validate_as(cls, apply_mm_alias(data))
