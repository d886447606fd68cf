"""A Responses request as a chat request: items to messages, tools and choices to functions.

What a chat request cannot hold (ids, where transfer params go) stays with the Responses request. The turns
are put together as vLLM does: reasoning, text and calls of the assistant that follow each other are one
message as far as each of them has its place free.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from render_tier.protocol.chat import (
    ChatCompletionRequest,
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    Tool,
)
from render_tier.protocol.request_fields import JsonSchema, ResponseFormat
from render_tier.protocol.response_items import InputItem, flat_name
from render_tier.protocol.responses_request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JsonSchemaFormat,
    NamedChoice,
    NamespaceTool,
    OtherChoice,
    ResponsesRequest,
    ResponseTool,
    TextConfig,
)
from render_tier.protocol.validation import invalid

CUSTOM_INPUT: Final = "input"
"""The one argument of the function that stands for a custom tool."""
CUSTOM_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}
    },
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
SHARED_FIELDS: Final = (
    *("model", "logit_bias", "parallel_tool_calls", "include_reasoning", "stream", "temperature", "top_p"),
    *("top_k", "min_p", "skip_special_tokens", "include_stop_str_in_output", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "watermarking", "session_id", "media_io_kwargs"),
    *("mm_processor_kwargs", "priority", "cache_salt", "structured_outputs", "seed"),
    *("stop_token_ids", "ignore_eos", "vllm_xargs", "kv_transfer_params", "ec_transfer_params"),
    *("chat_template_kwargs", "top_logprobs", "user", "request_id"),
)


def as_chat(request: ResponsesRequest, *, joined: bool = True) -> ChatCompletionRequest:
    """The chat request that renders to the same prompt and sampling parameters. ``joined``: parts of a turn
    become one message, as templates expect. Raises BadRequest."""
    continued = request.continues_final_message
    functions = function_tools(request.tools)
    return ChatCompletionRequest.model_construct(
        **{name: getattr(request, name) for name in SHARED_FIELDS},
        messages=list(_messages(request, joined)),
        add_special_tokens=True,  # also where the template has written them, as vLLM does
        stop=request.stop or None,
        tools=functions if request.tools else None,
        tool_choice=_choice(request, functions),
        add_generation_prompt=not continued,
        continue_final_message=continued,
        logprobs=request.wants_logprobs,
        max_completion_tokens=request.max_output_tokens,
        truncate_prompt_tokens=None if request.truncation == "disabled" else -1,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        response_format=_response_format(request),
    )


def function_tools(tools: Sequence[ResponseTool]) -> list[Tool]:
    """The functions that the model is shown, in order."""
    return [Tool(function=function) for tool in tools for function in _functions(tool)]


def namespaced_names(tools: Sequence[ResponseTool]) -> dict[str, tuple[str, str]]:
    """Names of functions as the model knows them -> (name, namespace)."""
    return {
        flat_name(tool.name, inner.name): (inner.name, tool.name)
        for tool in tools
        if isinstance(tool, NamespaceTool)
        for inner in tool.tools
        if isinstance(inner, FunctionTool)
    }


def custom_names(tools: Sequence[ResponseTool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools if isinstance(tool, CustomTool))


def _functions(tool: ResponseTool) -> Iterator[FunctionDefinition]:
    if isinstance(tool, FunctionTool):
        yield _function(tool, tool.name)
    elif isinstance(tool, CustomTool):
        yield FunctionDefinition(name=tool.name, description=tool.description, parameters=CUSTOM_PARAMETERS)
    elif isinstance(tool, NamespaceTool):
        for inner in tool.tools:
            if isinstance(inner, FunctionTool):
                yield _function(inner, flat_name(tool.name, inner.name))


def _function(tool: FunctionTool, name: str) -> FunctionDefinition:
    return FunctionDefinition(
        name=name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
        defer_loading=tool.defer_loading,
    )


def _choice(request: ResponsesRequest, functions: Sequence[Tool]) -> Any:
    choice = request.tool_choice
    if isinstance(choice, OtherChoice):
        return "auto"
    if isinstance(choice, NamedChoice):
        name = _resolved_name(choice.name, request.tools)
        return NamedToolChoice(function=NamedFunction(name=name))
    wanted = choice.mode if isinstance(choice, AllowedTools) else choice
    if wanted == "required" and not functions:
        raise invalid(
            "tool_choice requires a function call, but tools contains no function tool the model can call.",
            "tool_choice",
        )
    return wanted


def _resolved_name(name: str, tools: Sequence[ResponseTool]) -> str:
    """The name that the model knows for the function that the client names. Raises BadRequest."""
    namespaced = namespaced_names(tools)
    if name in namespaced or any(
        tool.name == name for tool in tools if isinstance(tool, FunctionTool | CustomTool)
    ):
        return name
    candidates = [flat for flat, (inner, _namespace) in namespaced.items() if inner == name]
    if len(candidates) > 1:
        raise invalid(
            f"Tool choice {name[:100]!r} is ambiguous: it is defined in more than one namespace "
            f"({', '.join(candidates)[:300]}). Select it by its full '<namespace>__<name>' name.",
            "tool_choice",
        )
    if not candidates:
        raise invalid("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
    return candidates[0]


def _response_format(request: ResponsesRequest) -> ResponseFormat | None:
    """Raises BadRequest when the request constrains its output twice."""
    asked = (request.text or TextConfig()).format
    if asked is None:
        return None
    if request.structured_outputs is not None:
        raise invalid("Cannot specify both structured_outputs and text.format", "structured_outputs")
    if isinstance(asked, JsonSchemaFormat):
        schema = JsonSchema.model_construct(name=asked.name, json_schema=asked.json_schema)
        return ResponseFormat(type="json_schema", json_schema=schema)
    return ResponseFormat(type=asked.type)


def _messages(request: ResponsesRequest, joined: bool) -> Iterator[dict[str, Any]]:
    if request.instructions:
        yield {"role": "system", "content": request.instructions}
    if isinstance(request.input, str):
        yield {"role": "user", "content": request.input}
        return
    open_turn: dict[str, Any] | None = None
    """The assistant's, while what follows may belong to it."""
    for item in request.input:
        if item.kind == "message":
            assert item.fields is not None
            message = dict(item.fields)
        elif item.kind == "result":
            message = {"role": "tool", "content": item.content, "tool_call_id": item.call_id}
        elif joined and open_turn is not None and _joined(open_turn, item):
            continue
        else:
            message = {"role": "assistant"}
            _joined(message, item)
        if open_turn is not None:
            yield open_turn
            open_turn = None
        if message["role"] == "assistant":
            open_turn = message
        else:
            yield message
    if open_turn is not None:
        yield open_turn


def _joined(turn: dict[str, Any], item: InputItem) -> bool:
    """Put an item into the assistant's turn, if its place there is free."""
    if item.kind == "call":
        if turn.get("tool_calls") is None:
            turn["tool_calls"] = []
        turn["tool_calls"].append(_call(item))
        return True
    place = "reasoning" if item.kind == "reasoning" else "content"
    if turn.get(place) is not None:
        return False
    turn[place] = item.text
    return True


def _call(item: InputItem) -> dict[str, Any]:
    arguments = json.dumps({CUSTOM_INPUT: item.text}, ensure_ascii=False) if item.custom else item.text
    return {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": arguments},
    }
