"""Chat and completions requests for the render comparison: all kinds of message, tools and sampling."""

from __future__ import annotations

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City, e.g. Zürich"},
                "days": {"type": "integer", "minimum": 1},
                "unit": {"type": "string", "enum": ["c", "f"]},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "<b>&'": {"type": "null"}}},
    },
}
BARE = {"type": "function", "function": {"name": "now"}}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


USER = {"role": "user", "content": "What is the weather in Zürich?"}
SYSTEM = {"role": "system", "content": "Answer in one sentence."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        _call("call_1", "get_weather", '{"city": "Zürich", "days": 2, "unit": null}'),
    ],
}
TWO_CALLS = {
    "role": "assistant",
    "content": "Two things at once.",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Bern"}'}},
        {
            "id": "b",
            "type": "function",
            "function": {"name": "search", "arguments": '{"q":"1e3 \\u00e9 <tag>"}'},
        },
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 7.50, "sky": "☁"}'}


def _chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "qwen3", "messages": list(messages or (SYSTEM, USER)), **fields}


def _said(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

CHAT: dict[str, dict[str, Any]] = {
    # messages
    "plain": _chat(),
    "user only": _chat(USER),
    "no model": {"messages": [USER]},
    "turns": _chat(SYSTEM, USER, {"role": "assistant", "content": "Cold."}, _said("And tomorrow?")),
    "empty content": _chat(_said("")),
    "text parts": _chat(_said([_text("first"), _text(" second ")])),
    "scripts": _chat(_said("日本語 — Привет, مرحبا 👩‍👩‍👧‍👦 e\u0301 \u00a0\u200b\ttab\r\n  end  ")),
    "markers in text": _chat(_said("<|im_end|>\n<|im_start|>system\n<think>no</think><tool_call>{}")),
    "reasoning in history": _chat(
        USER, {"role": "assistant", "reasoning": "It is winter.", "content": "Cold."}, _said("Sure?")
    ),
    "reasoning_content in history": _chat(
        USER, {"role": "assistant", "reasoning_content": "It is winter.", "content": "Cold."}, _said("Sure?")
    ),
    "think block in history": _chat(
        USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nCold."}, _said("Sure?")
    ),
    "tool round": _chat(SYSTEM, USER, CALL, RESULT, tools=[WEATHER]),
    "two calls, two results": _chat(
        USER,
        TWO_CALLS,
        {"role": "tool", "tool_call_id": "a", "content": "7"},
        {"role": "tool", "tool_call_id": "b", "content": [_text("x"), _text("y")]},
        _said("Thanks"),
        tools=[WEATHER, SEARCH],
    ),
    "malformed arguments in history": _chat(
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call("c", "now", '{"a": ')],
        },
        RESULT,
        tools=[BARE],
    ),
    "tool result without call": _chat(USER, RESULT),
    "names": _chat({**SYSTEM, "name": "boss"}, {**USER, "name": "ada"}),
    "long": _chat(_said("All work and no play makes Jack a dull boy.\n" * 400)),
    # template switches
    "no thinking": _chat(chat_template_kwargs={"enable_thinking": False}),
    "thinking said twice": _chat(chat_template_kwargs={"enable_thinking": True}),
    "unknown template argument": _chat(chat_template_kwargs={"colour": "green"}),
    "effort none": _chat(reasoning_effort="none"),
    "effort high": _chat(reasoning_effort="high"),
    "hidden reasoning": _chat(include_reasoning=False),
    "no generation prompt": _chat(add_generation_prompt=False),
    "continue last message": _chat(
        USER,
        {"role": "assistant", "content": "The weather in"},
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "special tokens added": _chat(add_special_tokens=True),
    "truncated left": _chat(truncate_prompt_tokens=12),
    "documents": _chat(documents=[{"title": "t", "text": "d"}]),
    # tools
    "tools auto": _chat(tools=[WEATHER, SEARCH, BARE]),
    "tools auto said": _chat(tools=[WEATHER], tool_choice="auto"),
    "tools none": _chat(tools=[WEATHER, SEARCH], tool_choice="none"),
    "tools and no thinking": _chat(tools=[SEARCH], chat_template_kwargs={"enable_thinking": False}),
    # sampling
    "every field": _chat(
        temperature=0.7, top_p=0.8, top_k=12, min_p=0.05, presence_penalty=0.3, frequency_penalty=-0.2,
        repetition_penalty=1.1, seed=11, stop=["END", "\n\n"], stop_token_ids=[5, 6],
        max_completion_tokens=77, max_tokens=99, min_tokens=3, n=2, logprobs=True, top_logprobs=4,
        logit_bias={"5": 3, "6": -200.0}, bad_words=["no"], ignore_eos=True, include_stop_str_in_output=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False, priority=2, cache_salt="salt",
    ),
    "greedy": _chat(temperature=0, top_p=0.3, top_k=5, min_p=0.2),
    "almost greedy": _chat(temperature=0.001),
    "max_tokens 16": _chat(max_tokens=16),
    "max_tokens beyond the room": _chat(max_tokens=32_000),
    "stop as string": _chat(stop="END"),
    "logprobs of the sampled token only": _chat(logprobs=True),
    "allowed tokens": _chat(allowed_token_ids=[10, 11, 12]),
    "streaming": _chat(stream=True, stream_options={"include_usage": True}),
    "seed -1": _chat(seed=-1),
    "vllm_xargs": _chat(vllm_xargs={"a": 1, "b": "x"}),
    "json object": _chat(response_format={"type": "json_object"}),
    "json schema": _chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}
    ),
    "regex": _chat(structured_outputs={"regex": "[ab]+"}),
    "unknown field": _chat(user="u", metadata={"a": "b"}, flavour="sour"),
}  # fmt: skip

COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"model": "qwen3", "prompt": "Once upon a time"},
    "texts": {"model": "qwen3", "prompt": ["one", "two three"], "max_tokens": 5},
    "token ids": {"model": "qwen3", "prompt": [1, 2, 3], "max_tokens": 16},
    "lists of token ids": {"model": "qwen3", "prompt": [[1, 2], [3]], "temperature": 0},
    "empty": {"model": "qwen3", "prompt": " "},
    "sampling": {
        "model": "qwen3", "prompt": "x", "n": 3, "logprobs": 2, "stop": ["."], "seed": 4, "top_k": 3,
        "min_tokens": 1, "max_tokens": 9, "stream": True,
    },
    "markers": {"model": "qwen3", "prompt": "<|im_start|>user\nhi<|im_end|>\n", "add_special_tokens": False},
    "echo": {"model": "qwen3", "prompt": "x y", "echo": True, "logprobs": 1, "max_tokens": 4},
}  # fmt: skip
