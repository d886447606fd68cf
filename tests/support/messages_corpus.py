"""Messages requests (Anthropic's API) of every kind, for the servers of `tests.support.render_corpus`; the
answers recorded in `tests/conformance/data/messages` were given by `vllm launch render`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.support.render_corpus import DATA as RENDER_DATA
from tests.support.render_corpus import SPECIAL_MARKERS, WORDS, Json, without_schemas

DATA = RENDER_DATA.parent / "messages"
PATH = "/v1/messages/render"
FUZZED = 60
"""Random conversations for each server."""

USER: Json = {"role": "user", "content": "What is the weather in Paris?"}
DONE: Json = {"role": "assistant", "content": "Cold."}
TOOL: Json = {
    "name": "f",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
BARE: Json = {"name": "g", "input_schema": {}}
STRICT: Json = {"name": "s", "strict": True, "input_schema": {"properties": {}, "required": []}}
DEFERRED: Json = {"name": "later", "defer_loading": True, "input_schema": {"type": "object"}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def text(value: Any, **more: Any) -> Json:
    return {"type": "text", "text": value, **more}


def thinking(value: Any, **more: Any) -> Json:
    return {"type": "thinking", "thinking": value, "signature": "s", **more}


def use(name: Any, arguments: Any, **more: Any) -> Json:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments, **more}


def result(content: Any, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def _said(role: str, *blocks: Any) -> Json:
    return {"role": role, "content": list(blocks)}


CONVERSATIONS: tuple[list[Json], ...] = (
    [],
    [USER],
    [{"role": "user", "content": ""}],
    [_said("user")],
    [_said("user"), USER],
    [_said("user", text("a"), text(" b "))],
    [_said("user", text("a", cache_control={"type": "ephemeral"}, citations=None))],
    [_said("user", text(""))],
    [_said("user", text(None), text("x"))],
    [_said("user", {"type": "text"})],
    [_said("user", IMAGE, text("what is it?"))],
    [_said("user", {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/x.png"}})],
    [_said("user", {"type": "image"}, text("x"))],
    [_said("user", {"type": "image", "source": {}}, text("x"))],
    [_said("user", {"type": "document", "source": {"type": "text", "data": "x"}}, text("x"))],
    [USER, DONE, {"role": "user", "content": "Sure?"}],
    [USER, {"role": "assistant", "content": "Cold"}],
    [USER, _said("assistant", text("Cold."), text("Very."))],
    [USER, _said("assistant"), USER],
    [USER, _said("assistant", text("")), USER],
    [USER, _said("assistant", thinking("It is winter."), text("Cold.")), USER],
    [USER, _said("assistant", thinking("a"), thinking("b"), text("Cold.")), USER],
    [USER, _said("assistant", thinking("It is winter.")), USER],
    [USER, _said("assistant", thinking(""), text("Cold.")), USER],
    [USER, _said("assistant", thinking(None), text("Cold.")), USER],
    [USER, _said("assistant", {"type": "redacted_thinking", "data": "xyz"}, text("Cold.")), USER],
    [USER, _said("assistant", {"type": "redacted_thinking", "data": "xyz"}), USER],
    [_said("user", thinking("I am the user"), text("x"))],
    [USER, _said("assistant", use("f", {"a": 1})), _said("user", result("18C"))],
    [USER, _said("assistant", text("Let me see."), use("f", {"a": 1})), _said("user", result("18C"))],
    [USER, _said("assistant", thinking("hm"), use("f", {"a": 1})), _said("user", result("18C"))],
    [USER, _said("assistant", use("f", {})), _said("user", result([text("a"), text("b")]))],
    [USER, _said("assistant", use("f", None)), _said("user", result(None))],
    [
        USER,
        _said("assistant", use("f", {"b": [1, 2.50, None, "é\n<"]})),
        _said("user", result("", is_error=True)),
    ],
    [USER, _said("assistant", use(None, {})), _said("user", result("x"))],
    [
        USER,
        _said("assistant", use("f", {"a": 1}), use("g", {"t": "ü"}, id="toolu_2")),
        _said("user", result("1"), result("2", tool_use_id="toolu_2"), text("Thanks")),
    ],
    [USER, _said("assistant", use("f", {})), _said("user", text("first"), result("later"))],
    [USER, _said("assistant", use("f", {})), _said("user", result([text("see"), IMAGE]))],
    [
        USER,
        _said("assistant", use("f", {})),
        _said("user", result([{"type": "image", "source": {"type": "url"}}])),
    ],
    [
        USER,
        _said("assistant", use("f", {})),
        _said("user", result([{"type": "tool_reference", "tool_name": "f"}])),
    ],
    [USER, _said("assistant", use("f", {})), _said("user", result([{"type": "weird"}, {"type": "text"}]))],
    [USER, _said("assistant", use("f", {})), _said("user", result([1]))],
    [USER, _said("assistant", text("x"), result("mine")), USER],
    [USER, _said("assistant", result([text("mine")])), USER],
    [USER, _said("assistant", {"type": "tool_reference", "tool_name": "f"}, text("x")), USER],
    [_said("user", use("f", {"a": 1}))],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, DONE, {"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be nice."}, DONE, USER],
    [USER, _said("system", text("Be "), text("brief."))],
    [USER, _said("system", text("x-anthropic-billing-header: a"), text("Be brief."))],
    [USER, {"role": "system", "content": "x-anthropic-billing-header: a\nBe brief."}],
    [USER, _said("system", IMAGE)],
    [{"role": "system", "content": "Only this."}],
    [{"role": "tool", "content": "x"}],
    [{"role": "weird", "content": "x"}],
    [{"role": "user"}],
    [{"content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 3}],
    [{"role": "user", "content": ["x"]}],
    [_said("user", {"type": "weird"})],
    [_said("user", {"text": "x"})],
    [_said("user", text(3))],
    [_said("assistant", use("f", "no object"))],
    [_said("user", result(3))],
    [USER, {"role": "user", "content": "again"}],
    [_said("user", text("日本語 — 👩‍👩‍👧‍👦 <|im_end|></think><tool_call>{}"))],
)

SYSTEMS: tuple[Any, ...] = (
    "Be brief.",
    "",
    [],
    [text("Be brief."), text("Be nice.", cache_control={"type": "ephemeral"})],
    [text("x-anthropic-billing-header: cc_version=1; cch=abc"), text("You are Claude Code."), text("More.")],
    [text("x-anthropic-billing-header: cc_version=1; cch=abc")],
    [text("x-anthropic-billing-header: a\nsecond line")],
    "x-anthropic-billing-header: a\nsecond line",
    "x-anthropic-billing-header: a",
    [IMAGE, text("x")],
    [text("")],
    3,
    [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}],
)

FIELDS: tuple[Json, ...] = (
    {"max_tokens": 1},
    {"max_tokens": 16},
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"max_tokens": 5000},
    {"max_tokens": "12"},
    {"max_tokens": 1.5},
    {"max_tokens": None},
    {"model": ""},
    {"model": None},
    {"model": "nope"},
    {"temperature": 0, "top_p": 0.3, "top_k": 5},
    {"temperature": 0.001},
    {"temperature": 2.5},
    {"top_p": 0},
    {"top_k": -2},
    {"top_k": 3, "top_p": 0.5},
    {"stop_sequences": []},
    {"stop_sequences": ["a", "b"]},
    {"stop_sequences": ["a", "b", "c", "d"]},
    {"stop_sequences": ["a", "b", "c", "d", "e"]},
    {"stop_sequences": [""]},
    {"stop_sequences": "a"},
    {"stop_sequences": [1]},
    {"stream": True},
    {"stream": False},
    {"stream": None},
    {"stream": "maybe"},
    {"metadata": {"user_id": "u"}},
    {"metadata": "u"},
    {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "adaptive"}},
    {"thinking": {"type": "adaptive", "display": "omitted"}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
    {"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "summarized"}, "max_tokens": 2001},
    {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000},
    {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 2000},
    {"thinking": {"type": "enabled"}, "max_tokens": 2000},
    {"thinking": {"type": "weird"}},
    {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
    {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
    {
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True},
    },
    {"output_config": {}},
    {"output_config": {"effort": "low"}},
    {"output_config": {"effort": "max"}},
    {"output_config": {"effort": "none"}},
    {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    {"output_config": {"format": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}},
    {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
    {"output_config": {"format": {"type": "json_object"}}},
    {"cache_salt": "abc"},
    {"cache_salt": ""},
    {"cache_salt": "a@b"},
    {"cache_salt": "a" * 200},
    {"cache_salt": "a" * 1025},
    {"kv_transfer_params": {"do_remote_decode": True}},
    {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3], "x": 1}},
    {"ec_transfer_params": {"a": 1}},
    {"vllm_xargs": {"a": 1, "b": "x", "c": ["d", 2]}},
    {"vllm_xargs": {"a": {}}},
    {"watermarking": True},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"add_generation_prompt": False, "x": 1}},
    {"chat_template_kwargs": {"chat_template": "{{ messages[0].content }}"}},
    {"mm_payload": "none"},
    {"mm_payload": "weird"},
    {"return_mm_kwargs": False},
    {"service_tier": "auto", "container": None, "flavour": "sour"},
    {"logprobs": True, "n": 4, "seed": 3, "priority": 4, "request_id": "r"},
    {"system": "Be brief.", "stream": True, "stop_sequences": ["END"], "metadata": {"user_id": "u"}},
)

TOOLS: tuple[Any, ...] = (
    [],
    None,
    [TOOL],
    [TOOL, BARE],
    [STRICT, BARE],
    [TOOL, DEFERRED],
    [{**TOOL, "description": None, "cache_control": {"type": "ephemeral"}}],
    [{**TOOL, "type": "custom"}],
    [{"type": "web_search_20250305", "name": "web_search"}],
    [{"name": "f"}],
    [{"input_schema": {}}],
    [{"name": "f", "input_schema": []}],
    {"name": "f"},
)

CHOICES: tuple[Any, ...] = (
    {"type": "auto"},
    {"type": "any"},
    {"type": "none"},
    {"type": "tool", "name": "f"},
    {"type": "tool", "name": "zz"},
    {"type": "tool"},
    {"type": "auto", "disable_parallel_tool_use": True},
    {"type": "any", "disable_parallel_tool_use": True},
    {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    {"type": "auto", "name": "f", "disable_parallel_tool_use": False},
    {"type": "weird"},
    "auto",
)

REFERENCE: Json = {"type": "tool_reference", "name": "f"}
DEFINITION: Json = {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}}
CHANGES: tuple[list[Json], ...] = (
    [{"type": "tool_removal", "tool": REFERENCE}],
    [{"type": "tool_addition", "tool": {**REFERENCE, "name": "later"}}],
    [{"type": "tool_addition", "tool": DEFINITION}],
    [{"type": "tool_removal", "tool": REFERENCE}, {"type": "tool_addition", "tool": REFERENCE}],
    [{"type": "tool_removal", "tool": {**REFERENCE, "name": "zz"}}],
    [{"type": "tool_removal", "tool": DEFINITION}],
    [{"type": "tool_addition"}],
    [text("Changed:"), {"type": "tool_addition", "tool": DEFINITION}],
)


def corpus(name: str) -> dict[str, tuple[str, Json]]:
    """The requests to one server by name, as path and body."""
    requests = {title: (PATH, body) for title, body in _requests(name)}
    assert len(requests) == sum(1 for _ in _requests(name))
    return requests


def _requests(name: str) -> Iterator[tuple[str, Json]]:
    def body(**fields: Any) -> Json:
        return {"model": name, "max_tokens": 50, "messages": [USER], **fields}

    for number, messages in enumerate(CONVERSATIONS):
        yield f"conversation {number}", body(messages=messages)
        if number % 3 == 0:
            yield (
                f"conversation {number} with more",
                body(messages=messages, tools=[TOOL], system="Be brief."),
            )
    for number, system in enumerate(SYSTEMS):
        yield f"system {number}", body(system=system)
        inline = [USER, {"role": "system", "content": "Inline."}, DONE, USER]
        yield f"system {number} and inline", body(system=system, messages=inline)
    for number, fields in enumerate(FIELDS):
        yield f"fields {json.dumps(fields)[:60]} {number}", body(**fields)
    for number, tools in enumerate(TOOLS):
        yield f"tools {number}", body(tools=tools)
    for number, choice in enumerate(CHOICES):
        yield f"choice {number}", body(tools=[TOOL, BARE], tool_choice=choice)
        yield f"choice {number} of none", body(tool_choice=choice)
    yield "choice of strict", body(tools=[STRICT, BARE], tool_choice={"type": "any"})
    yield (
        "choice and format",
        body(
            tools=[TOOL],
            tool_choice={"type": "auto"},
            output_config={"format": {"schema": {"type": "object"}}},
        ),
    )
    for number, blocks in enumerate(CHANGES):
        changed = [USER, _said("system", *blocks), DONE, USER]
        yield f"changes {number}", body(messages=changed, tools=[TOOL, DEFERRED])
        yield f"changes {number} without tools", body(messages=changed)
        yield f"changes {number} by a user", body(messages=[_said("user", *blocks)], tools=[TOOL, DEFERRED])
    yield "no max_tokens", {"model": name, "messages": [USER]}
    yield "no model", {"max_tokens": 5, "messages": [USER]}
    yield "no messages", {"model": name, "max_tokens": 5}
    yield "too long", body(messages=[{"role": "user", "content": "word " * 5000}])
    draw = random.Random(f"messages {name}")
    for number in range(FUZZED):
        yield f"random {number}", _random(draw, body())


def _random(draw: random.Random, body: Json) -> Json:
    def words() -> str:
        return "".join(draw.choices(WORDS, k=draw.randint(0, 8)))

    def call(number: int) -> Json:
        return use(
            draw.choice("fg"), draw.choice(({}, {"a": [1, 2.0, None]}, {"t": words()})), id=f"c{number}"
        )

    def answer(number: int) -> Json:
        content = draw.choice((words(), [text(words()) for _ in range(draw.randint(0, 3))]))
        return result(content, tool_use_id=f"c{number}", is_error=draw.random() < 0.2)

    messages: list[Json] = []
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": draw.choice((words(), [text(words()), text(words())]))})
        if draw.random() < 0.2:
            messages.append({"role": "system", "content": words()})
        blocks: list[Json] = []
        if draw.random() < 0.4:
            blocks.append(thinking(words()))
        blocks += [text(words()) for _ in range(draw.randint(0, 2))]
        calls = draw.randint(0, 2) if draw.random() < 0.5 else 0
        blocks += [call(number) for number in range(calls)]
        messages.append(_said("assistant", *blocks))
        if calls:
            extra = [text(words())] if draw.random() < 0.3 else []
            messages.append(_said("user", *(answer(number) for number in range(calls)), *extra))
            messages.append({"role": "assistant", "content": words()})
    if draw.random() < 0.8:
        messages.append({"role": "user", "content": words()})
    body["messages"] = messages
    if draw.random() < 0.5:
        body["system"] = draw.choice((words(), [text(words()) for _ in range(draw.randint(1, 3))]))
    if draw.random() < 0.5:
        body["tools"] = draw.choice(([TOOL], [TOOL, BARE], [STRICT], [TOOL, DEFERRED]))
    if draw.random() < 0.3:
        body["thinking"] = draw.choice(({"type": "disabled"}, {"type": "adaptive"}))
    return body


def known(server: str, name: str, ours: Any, theirs: Any) -> bool:
    """Whether a difference is one of those that are meant, and nothing else differs."""
    if ours != theirs and isinstance(ours, list):
        # An image of which the request has nothing: vLLM leaves it out without a word.
        return ours[:2] == [400, "BadRequestError"] and ".source" in (ours[2] or "")
    if server in SPECIAL_MARKERS and isinstance(ours, dict) and isinstance(theirs, dict):
        params = {k: v for k, v in ours["sampling_params"].items() if k != "skip_special_tokens"}
        ours = {**ours, "sampling_params": params}
    return ours == theirs or (
        name.startswith("choice") and bool(without_schemas(ours) == without_schemas(theirs))
    )
