"""Requests of every kind that Responses render takes; served and recorded as `tests.support.render_corpus`.

The recorded answers of `vllm launch render` are in `tests/conformance/data/responses`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.support import render_corpus
from tests.support.render_corpus import WORDS, Json

DATA = render_corpus.DATA.parent / "responses"
HARMONY = "harmony"
"""Conversations and fields alone: what is no use to a model of this format, vLLM refuses in other words."""
MODELS = (*render_corpus.SERVERS, HARMONY)
RESPONSES = "/v1/responses/render"
FUZZED = {"qwen3": 60}
"""Random conversations; half as many for the other tokenizers."""

ASK = "What is the weather in Paris?"
USER: Json = {"role": "user", "content": ASK}
FUNCTION: Json = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
BARE: Json = {"type": "function", "name": "g"}
STRICT: Json = {
    "type": "function",
    "name": "s",
    "strict": True,
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
CUSTOM: Json = {"type": "custom", "name": "write", "description": "Write a note."}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}],
}
CALL: Json = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RESULT: Json = {"type": "function_call_output", "call_id": "c1", "output": "18C"}
THOUGHT: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Let me look."}],
}
SAID: Json = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Cold.", "annotations": []}],
}
ITEMS: tuple[Any, ...] = (
    {"role": "user", "content": "x"},
    {"role": "user", "content": "x", "type": "message", "extra": 1},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": " b "}]},
    {"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}], "type": "message"},
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "user", "content": [{"type": "input_text"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
    {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
    {"role": "user", "content": "x", "status": "in_progress"},
    {"role": "user", "content": "x", "name": "n"},
    {"role": "system", "content": "x"},
    {"role": "system", "content": [{"type": "input_text", "text": "x-anthropic-billing-header: a\nreal"}]},
    {"role": "developer", "content": "x"},
    {"role": "developer", "content": [{"type": "input_text", "text": "x"}], "type": "message"},
    {"role": "tool", "content": "x"},
    {"role": "weird", "content": "x"},
    {"role": "assistant", "content": "x"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {"type": "message", "role": "assistant", "content": "x"},
    {"type": "message", "role": "assistant", "content": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text"}]},
    {"type": "message", "role": "assistant", "content": "x", "phase": "commentary"},
    {"type": "message", "content": "x"},
    SAID,
    {**SAID, "status": "incomplete"},
    {**SAID, "status": "weird"},
    CALL,
    {**CALL, "id": "fc_1", "status": "completed"},
    {**CALL, "status": "weird"},
    {**CALL, "namespace": "crm"},
    {**CALL, "arguments": "{"},
    {**CALL, "arguments": {"a": 1}},
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "name": "f"},
    RESULT,
    {**RESULT, "output": [{"type": "input_text", "text": "18C"}, {"type": "input_text", "text": "dry"}]},
    {**RESULT, "output": []},
    {**RESULT, "output": {"t": 1}},
    {**RESULT, "output": None},
    {**RESULT, "status": "completed", "id": "x"},
    {"type": "function_call_output", "output": "18C"},
    {"type": "function_call_output", "call_id": "c"},
    THOUGHT,
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "no id"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
    {"type": "reasoning", "summary": []},
    {"type": "reasoning", "id": "r"},
    {"type": "reasoning", "summary": [], "content": []},
    {"type": "reasoning", "summary": [], "content": None},
    {"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "x"}]},
    {"type": "reasoning", "summary": [], "encrypted_content": "abc"},
    {"type": "reasoning", "summary": [], "encrypted_content": ""},
    {**THOUGHT, "status": "in_progress"},
    {"type": "custom_tool_call", "call_id": "c1", "name": "write", "input": 'a "note"\n'},
    {"type": "custom_tool_call", "call_id": "c1", "name": "write"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"id": "msg_1"},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "file_search_call", "id": "w", "status": "completed", "queries": []},
    {"type": "local_shell_call_output", "id": "w", "output": "x"},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "weird"},
    {},
    "text",
    5,
    None,
)
CONVERSATIONS: tuple[list[Any], ...] = (
    [],
    [USER],
    [USER, SAID, USER],
    [USER, THOUGHT, SAID, USER],
    [USER, THOUGHT, CALL, RESULT],
    [USER, THOUGHT, SAID, CALL, RESULT],
    [USER, CALL, {**CALL, "call_id": "c2"}, RESULT, {**RESULT, "call_id": "c2"}],
    [USER, CALL, SAID, RESULT],
    [USER, SAID, THOUGHT, CALL, RESULT],
    [USER, THOUGHT, THOUGHT, SAID],
    [USER, THOUGHT],
    [USER, SAID, SAID, USER],
    [USER, {"role": "assistant", "content": "easy"}, CALL, RESULT, THOUGHT, SAID, USER],
    [USER, THOUGHT, {"role": "assistant", "content": "easy"}],
    [USER, THOUGHT, {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}, CALL, RESULT],
    [{"role": "system", "content": "Be brief."}, USER],
    [{"role": "developer", "content": "Be brief."}, USER],
    [USER, {"role": "developer", "content": "Now be long."}, USER],
    [USER, {**SAID, "status": "incomplete"}],
    [USER, {**SAID, "status": "in_progress"}],
    [USER, {**THOUGHT, "status": "incomplete"}],
    [USER, {"role": "assistant", "content": "Sure, it ", "status": "incomplete"}],
    [USER, {"role": "user", "content": "U", "status": "incomplete"}],
    [USER, THOUGHT, {**SAID, "status": "incomplete"}],
    [USER, {**CALL, "status": "incomplete"}],
    [USER, {"type": "custom_tool_call", "call_id": "c1", "name": "write", "input": "n"},
     {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}, USER],
)  # fmt: skip
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
FIELDS: tuple[Json, ...] = (
    {"instructions": "Be brief."},
    {"instructions": ""},
    {"instructions": None},
    {"instructions": ["x"]},
    {"temperature": 0, "top_p": 0.3, "top_k": 5},
    {"temperature": 0.001},
    {"temperature": 2.1},
    {"top_p": 0},
    {"top_k": -2},
    {"min_p": 2},
    {"presence_penalty": 3},
    {"frequency_penalty": -1.5, "presence_penalty": 1, "repetition_penalty": 1.2},
    {"repetition_penalty": 0},
    {"n": 3},
    {"seed": -1},
    {"seed": 5},
    {"seed": 2**63},
    {"stop": ["a", "b"]},
    {"stop": ["a", "b", "c", "d", "e"]},
    {"stop": ""},
    {"stop": "a"},
    {"max_output_tokens": 0},
    {"max_output_tokens": -1},
    {"max_output_tokens": 16},
    {"max_output_tokens": 4090},
    {"max_output_tokens": 5000},
    {"max_output_tokens": None},
    {"max_output_tokens": "x"},
    {"max_tokens": 5},
    {"top_logprobs": 2},
    {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    {"include": ["message.output_text.logprobs"]},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 30},
    {"include": ["reasoning.encrypted_content"]},
    {"include": ["weird"]},
    {"include": []},
    {"logit_bias": {"5": 1, "6": 1000}},
    {"logit_bias": {"x": 1}},
    {"stop_token_ids": [1, 1, 2]},
    {"stop_token_ids": None},
    {"ignore_eos": True},
    {"skip_special_tokens": False},
    {"include_stop_str_in_output": True, "stop": "a"},
    {"stream": True},
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    {"priority": 5, "cache_salt": "abc"},
    {"cache_salt": "a@b"},
    {"cache_salt": ""},
    {"truncation": "auto"},
    {"truncation": "disabled"},
    {"truncation": None},
    {"truncation": "weird"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"effort": "minimal"}},
    {"reasoning": {"effort": "low"}},
    {"reasoning": {"effort": "high", "summary": "auto"}},
    {"reasoning": {"effort": "weird"}},
    {"reasoning": {"effort": None}},
    {"reasoning": {}},
    {"reasoning": None},
    {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}},
    {"reasoning_effort": "none"},
    {"include_reasoning": False},
    {"text": {}},
    {"text": None},
    {"text": {"format": {"type": "text"}}},
    {"text": {"format": {"type": "json_object"}}},
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}},
    {"text": {"format": {"type": "json_schema", "name": "x"}}},
    {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"text": {"format": {"type": "weird"}}},
    {"text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"text": {"verbosity": "weird"}},
    {"text": {"format": {"type": "text"}}, "structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {}},
    {"response_format": {"type": "json_object"}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"add_generation_prompt": False, "x": 1}},
    {"chat_template_kwargs": {"chat_template": "{{ messages[0].content }}"}},
    {"chat_template": "{{ messages[0].content }}"},
    {"kv_transfer_params": {"do_remote_decode": True}},
    {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3], "x": 1}},
    {"kv_transfer_params": {}},
    {"ec_transfer_params": {"a": 1}},
    {"vllm_xargs": {"a": 1, "b": "x"}},
    {"vllm_xargs": {"a": 1}, "kv_transfer_params": {"x": 1}},
    {"request_id": "resp_mine"},
    {"previous_response_id": "resp_1"},
    {"previous_response_id": None},
    {"prompt": {"id": "pmpt_1"}},
    {"prompt": None},
    {"background": True},
    {"background": True, "store": False},
    {"store": True},
    {"store": False},
    {"metadata": {"a": "b"}},
    {"metadata": {"a": 1}},
    {"service_tier": "flex"},
    {"service_tier": "weird"},
    {"parallel_tool_calls": None},
    {"max_tool_calls": 3},
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
    {"model": "nope"},
    {"model": ""},
    {"model": None},
    {"watermarking": True},
    {"media_io_kwargs": {"image": {}}},
    {"mm_processor_kwargs": {"x": 1}},
    {"conversation": "conv_1"},
    {"unknown": 1},
    {"tools": [FUNCTION, BARE]},
    {"tools": [STRICT, BARE]},
    {"tools": [CUSTOM]},
    {"tools": [CUSTOM, FUNCTION]},
    {"tools": [NAMESPACE]},
    {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "web_search"}, FUNCTION]},
    {"tools": [{"type": "local_shell"}]},
    {"tools": [{"type": "weird"}]},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": [{**FUNCTION, "defer_loading": True}]},
    {"tools": [{**FUNCTION, "parameters": None, "description": None}]},
    {"tools": [{**CUSTOM, "format": {"type": "text"}}]},
    {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]},
    {"tools": []},
    {"tools": None},
    {"tools": {"a": 1}},
    {"tools": [], "tool_choice": "required"},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tool_choice": "required"},
    {"tool_choice": "weird"},
    {"tool_choice": None},
    {"tool_choice": {"type": "function", "name": "f"}},
    {"input": None},
    {"input": 5},
    {"input": {"role": "user", "content": "x"}},
    {"input": ""},
)
CHOICES: tuple[Any, ...] = (
    "auto",
    "none",
    "required",
    "weird",
    None,
    {"type": "function", "name": "f"},
    {"type": "function", "name": "zz"},
    {"type": "function"},
    {"type": "function", "function": {"name": "f"}},
    {"type": "custom", "name": "write"},
    {"type": "function", "name": "find"},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    {"type": "web_search_preview"},
    {"type": "weird"},
)
WITH_CHOICE: tuple[Json, ...] = (
    {"tools": [FUNCTION, BARE]},
    {"tools": [FUNCTION, BARE], "parallel_tool_calls": False},
    {"tools": [FUNCTION, CUSTOM, NAMESPACE]},
    {"tools": [FUNCTION], "text": {"format": {"type": "json_object"}}},
    {"tools": [STRICT, FUNCTION], "stream": True, "structured_outputs": {"regex": "a"}},
)


def corpus(name: str) -> dict[str, tuple[str, Json]]:
    """The requests to one server by name, as path and body."""
    requests = {title: (RESPONSES, body) for title, body in _requests(name)}
    assert len(requests) == sum(1 for _ in _requests(name))
    return requests


def _requests(name: str) -> Iterator[tuple[str, Json]]:
    if name == HARMONY:
        yield from _for_harmony()
        return
    full = name == "qwen3"
    for number, item in enumerate(ITEMS):
        yield f"item {number}", {"input": [item]}
        if full or number % 2:
            yield f"item {number} inside", {"input": [USER, item, USER], "tools": [FUNCTION]}
    for number, items in enumerate(CONVERSATIONS):
        yield f"conversation {number}", {"input": items, "tools": [FUNCTION]}
        yield f"conversation {number} instructed", {"input": items, "instructions": "Be brief."}
    for number, fields in enumerate(FIELDS):
        if full or number % 3 == len(name) % 3:
            yield f"fields {json.dumps(fields)[:60]} {number}", {"input": ASK, **fields}
    for choice in CHOICES:
        for number, fields in enumerate(WITH_CHOICE):
            if full or number < 3:
                yield f"choice {json.dumps(choice)} {number}", {"input": ASK, "tool_choice": choice, **fields}
    yield "no input", {"instructions": "x"}
    yield "too long", {"input": "word " * 5000}
    yield "cut to fit", {"input": "word " * 5000, "truncation": "auto"}
    yield "cut to leave room", {"input": "word " * 5000, "truncation": "auto", "max_output_tokens": 100}
    yield "too long with output", {"input": "word " * 4050, "max_output_tokens": 100}
    draw = random.Random(name)
    for number in range(FUZZED.get(name, 30)):
        yield f"random {number}", _random(draw)


def _for_harmony() -> Iterator[tuple[str, Json]]:
    for number, items in enumerate(CONVERSATIONS):
        yield f"conversation {number}", {"input": items, "tools": [FUNCTION]}
        yield f"conversation {number} instructed", {"input": items, "instructions": "Be brief."}
    for number, fields in enumerate(FIELDS):
        if number % 3 == len(HARMONY) % 3:
            yield f"fields {json.dumps(fields)[:60]} {number}", {"input": ASK, **fields}


def _random(draw: random.Random) -> Json:
    def text() -> str:
        return "".join(draw.choices(WORDS, k=draw.randint(0, 8)))

    def item() -> Json:
        kind = draw.choice(
            ("user", "user", "system", "developer", "said", "easy", "call", "result", "thought")
        )
        if kind in ("user", "system", "developer"):
            if draw.random() < 0.5:
                return {"role": kind, "content": text()}
            parts = [{"type": "input_text", "text": text()} for _ in range(draw.randint(1, 3))]
            return {"type": "message", "role": kind, "content": parts}
        if kind == "easy":
            return {"role": "assistant", "content": text()}
        if kind == "said":
            return {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text()} for _ in range(draw.randint(1, 2))],
            }
        if kind == "call":
            arguments = draw.choice(("{}", '{"a": [1, 2.0, null]}', "bad", json.dumps({"t": text()})))
            return {
                "type": "function_call",
                "call_id": "c0",
                "name": draw.choice("fg"),
                "arguments": arguments,
            }
        if kind == "result":
            return {"type": "function_call_output", "call_id": "c0", "output": text()}
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text()}]}

    body: Json = {"input": [item() for _ in range(draw.randint(1, 7))]}
    if draw.random() < 0.3:
        body["instructions"] = text()
    if draw.random() < 0.5:
        body["tools"] = [{**FUNCTION, "name": function, "description": text()} for function in "fg"]
        if draw.random() < 0.4:
            body["tool_choice"] = draw.choice(("none", "auto", "required"))
    if draw.random() < 0.3:
        body["reasoning"] = {"effort": draw.choice(("none", "low", "medium", "high"))}
    if draw.random() < 0.2:
        body["truncation"] = "auto"
    return body


CRASHES = (
    "item 24", "item 27",
)  # fmt: skip
"""An assistant's message without text, or one that is a refusal: vLLM answers 500."""
PARTS_OF_UNIONS = ('fields {"text"', 'fields {"tools"')
"""vLLM's error names the member of a union that pydantic tried first."""
OTHERWISE_IN_HARMONY = (
    "conversation 25",
    'fields {"mm_processor_kwargs"',
    'fields {"tools": [{"type": "custom"',
    'fields {"tools": [{"type": "web_search"}, {',
)
"""vLLM 0.32 refuses custom tools for this format, and hosted ones beside functions, which are taken here."""
LATE = 'fields {"include": ["message.output_text.logprobs"], "top_logprobs"'
"""More logprobs than the server gives are refused here; by vLLM's engine, later."""
CHOICES_BY_MODE = ('choice {"type": "allowed_tools"', 'choice {"type": "web_search_preview"')
"""A choice among allowed tools counts by its mode, another as "auto"; vLLM takes them for no choice."""
WITHOUT_TEMPLATE = ("gptoss", "item 10")
"""Two things are wrong with it, and vLLM finds the other one first."""


def known(server: str, name: str, ours: Any, theirs: Any) -> bool:
    """Whether a difference is one of those that are meant, and nothing else differs."""
    if server == HARMONY and name.startswith(OTHERWISE_IN_HARMONY):
        return isinstance(ours, dict) != isinstance(theirs, dict)
    if name.startswith(CRASHES):
        return bool(theirs[0] == 500)
    if (server, name) == WITHOUT_TEMPLATE:
        return bool(ours[:2] == theirs[:2])
    if name.startswith(PARTS_OF_UNIONS) and isinstance(ours, list) and isinstance(theirs, list):
        return ours[:2] == theirs[:2]
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return name.startswith(LATE) and ours == [400, "BadRequestError", "logprobs"]
    params = dict(theirs["sampling_params"])
    if params.get("extra_args") == {}:  # says nothing
        del params["extra_args"]
    theirs = {**theirs, "sampling_params": params}
    if name.startswith("random"):  # demanded calls and their schemas
        return render_corpus.known(server, "choice", ours, theirs)
    if name.startswith(CHOICES_BY_MODE):
        return _without_constraint(ours) == _without_constraint(theirs)
    return ours == theirs or render_corpus.known(server, name, ours, theirs)


def _without_constraint(answer: Json) -> Json:
    of_calls = ("structured_outputs", "skip_special_tokens")
    params = {k: v for k, v in answer["sampling_params"].items() if k not in of_calls}
    return {**answer, "sampling_params": params}
