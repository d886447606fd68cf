"""Requests of every kind that render takes, for nine models; the recorded answers are in
`tests/conformance/data/render` and were given by `vllm launch render` (`tests/vllm/record_render.py`).

The requests are built here, the same each time, so that the recording holds answers alone.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import native_requests
from tests.support.vllm import SYSTEM_START_DATE

DATA = Path(__file__).resolve().parent.parent / "conformance" / "data" / "render"
CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions/render", "/v1/completions/render", "/tokenize"
Json = dict[str, Any]
KEPT_IDS = 24
"""Longer prompts are recorded as their length, first IDs and digest."""


@dataclass(frozen=True)
class Server:
    """One model as both servers are told to serve it."""

    tokenizer: str
    options: tuple[str, ...]
    """Flags that the two share."""
    settings: Json
    """The same as settings."""
    architecture: str
    fuzzed: int
    """Random conversations."""
    native: tuple[str, int] | None = None
    """The format of chats that no template writes, and its version."""


def _server(
    tokenizer: str,
    architecture: str,
    *,
    fuzzed: int,
    native: tuple[str, int] | None = None,
    ours: Json | None = None,
    **settings: Any,
) -> Server:
    """``ours``: settings that are no flags of vLLM's."""
    settings = {"max_model_len": 4096, "trust_request_chat_template": True, **settings}
    options: list[str] = []
    for name, value in settings.items():
        options.append("--" + name.replace("_", "-"))
        if value is not True:
            options.append(str(value))
    return Server(tokenizer, tuple(options), {**settings, **(ours or {})}, architecture, fuzzed, native)


SENTENCEPIECE_VOCABULARY = 32768
SERVERS: dict[str, Server] = {
    "qwen3": _server(
        "qwen3",
        "Qwen3ForCausalLM",
        fuzzed=90,
        reasoning_parser="qwen3",
        tool_call_parser="hermes",
        enable_auto_tool_choice=True,
    ),
    "llama3_1": _server(
        "llama3_1",
        "LlamaForCausalLM",
        fuzzed=50,
        tool_call_parser="pythonic",
        enable_auto_tool_choice=True,
    ),
    "deepseek_v3": _server(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        fuzzed=50,
        tool_call_parser="deepseek_v3",
        enable_auto_tool_choice=True,
    ),
    "gemma3": _server("gemma3", "Gemma3ForCausalLM", fuzzed=50),
    "gptoss": _server("gptoss", "LlamaForCausalLM", fuzzed=50),
}
NATIVE: dict[str, Server] = {
    "harmony": _server(
        "gptoss",
        "GptOssForCausalLM",
        fuzzed=50,
        native=("harmony", 1),
        reasoning_parser="openai_gptoss",
        tool_call_parser="openai",
        enable_auto_tool_choice=True,
        ours={"system_start_date": SYSTEM_START_DATE},
    ),
    # Parsers where the vocabulary is small: vLLM walks through all of it for each request. (With them, it
    # refuses every chat of version 13, because it calls mistral-common 1.13 as an older version.)
    "mistral": _server(
        "tekken_240911", "MistralForCausalLM", fuzzed=30, native=("mistral", 3), tokenizer_mode="mistral"
    ),
    "mistral_spm": _server(
        "mistral_v3",
        "MistralForCausalLM",
        fuzzed=10,
        native=("mistral", 3),
        tokenizer_mode="mistral",
        reasoning_parser="mistral",
        tool_call_parser="mistral",
        enable_auto_tool_choice=True,
    ),
    "mistral_v13": _server(
        "tekken_v13", "MistralForCausalLM", fuzzed=30, native=("mistral", 13), tokenizer_mode="mistral"
    ),
}
"""Models whose chats no template writes."""
ALL = {**SERVERS, **NATIVE}
MODEL_TYPES = {
    "Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma3ForCausalLM": "gemma3_text",
    "GptOssForCausalLM": "gpt_oss",
    "MistralForCausalLM": "mistral",
}


def write_config(server: Server, directory: Path) -> None:
    """What of a config.json matters to both servers; a model without an architecture is an embedding model
    to vLLM, which cuts prompts at the other end."""
    config = {
        "architectures": [server.architecture],
        "model_type": MODEL_TYPES[server.architecture],
        "vocab_size": _vocab_size(directory),
        "max_position_embeddings": 8192,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "intermediate_size": 64,
    }
    (directory / "config.json").write_text(json.dumps(config))


def _vocab_size(directory: Path) -> int:
    tekken, sentencepiece = directory / "tekken.json", directory / "tokenizer.model.v3"
    if tekken.exists():
        return int(json.loads(tekken.read_text())["config"]["default_vocab_size"])
    if sentencepiece.exists():
        return SENTENCEPIECE_VOCABULARY
    vocabulary = json.loads((directory / "tokenizer.json").read_text())
    ids: list[int] = [*vocabulary["model"]["vocab"].values()]
    ids += [token["id"] for token in vocabulary["added_tokens"]]
    return max(ids) + 1


def lay_out(server: Server, tokenizer: Path, into: Path) -> Path:
    """A model directory for both servers: this tokenizer's files and our config.json."""
    into.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "tekken.json", "tokenizer.model.v3"):
        if (tokenizer / name).exists():
            (into / name).symlink_to((tokenizer / name).resolve())
    write_config(server, into)
    return into


USER: Json = {"role": "user", "content": "What is the weather in Paris?"}
CALL: Json = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
BARE: Json = {"type": "function", "function": {"name": "g"}}
STRICT: Json = {
    "type": "function",
    "function": {"name": "s", "strict": True, "parameters": {"type": "object", "properties": {}}},
}
MESSAGES: tuple[Json, ...] = (
    {"role": "user", "content": "x", "extra": 1},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b "}]},
    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"x": 1}}]},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "ab", "tool_calls": [CALL, {**CALL, "id": "d"}]},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "assistant", "content": "", "reasoning": "r"},
    {"role": "assistant", "content": "x", "reasoning_content": "r"},
    {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [CALL]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nCold."},
    {"role": "tool", "content": "x", "tool_call_id": "c"},
    {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "c"},
    {"role": "developer", "content": "x"},
    {"role": "weird", "content": "x"},
    {"role": "user", "content": "x", "name": "n"},
    {"role": "system", "content": [{"type": "text", "text": "a"}]},
    {"role": "system", "content": "x-anthropic-billing-header: a\nreal"},
)
ARGUMENTS = (
    "",
    "null",
    "[]",
    "42",
    "{",
    '{"a":{"b":[1,2]}}',
    '{"a":1.0,"b":1e22,"c":"\\u00e9\\n<"}',
    '{"a":NaN}',
)
FIELDS: tuple[Json, ...] = (
    {"temperature": 0, "top_p": 0.3, "top_k": 5},
    {"temperature": 0.001},
    {"temperature": 2.1},
    {"top_p": 0},
    {"top_k": -2},
    {"min_p": 2},
    {"n": 0},
    {"n": 3, "temperature": 0},
    {"n": 3},
    {"seed": -1},
    {"seed": 5},
    {"stop": ["a", "b"]},
    {"stop": ["a", "b", "c", "d", "e"]},
    {"stop": ""},
    {"max_tokens": 0},
    {"max_tokens": 16},
    {"max_tokens": 5000},
    {"max_completion_tokens": 7, "max_tokens": 9},
    {"min_tokens": 20, "max_tokens": 4},
    {"logprobs": True, "top_logprobs": 2},
    {"top_logprobs": 2},
    {"prompt_logprobs": 1},
    {"prompt_logprobs": 1, "stream": True},
    {"echo": True, "logprobs": True, "top_logprobs": 2},
    {"logit_bias": {"5": 1, "6": 1000}},
    {"logit_bias": {"x": 1}},
    {"stop_token_ids": [1, 1, 2]},
    {"allowed_token_ids": [1, 2]},
    {"bad_words": ["a", "a"]},
    {"ignore_eos": True},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"include_stop_str_in_output": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream_options": {}},
    {"priority": 5, "cache_salt": "abc"},
    {"cache_salt": "a@b"},
    {"truncate_prompt_tokens": 5},
    {"truncate_prompt_tokens": 5, "truncation_side": "right", "return_token_offsets": True},
    {"truncate_prompt_tokens": 5000},
    {"truncate_prompt_tokens": -2},
    {"use_beam_search": True},
    {"thinking_token_budget": 5},
    {"include_reasoning": False},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "weird"},
    {"add_generation_prompt": False},
    {"add_special_tokens": True},
    {"add_special_tokens": True, "truncate_prompt_tokens": 6},
    {"documents": [{"title": "a", "text": "b"}]},
    {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}{{ bos_token }}|{{ eos_token }}"},
    {
        "chat_template": "{% for m in messages %}[{{ m.role }}]{{ m|tojson }}{% endfor %}{{ tools|tojson }}",
        "tools": [TOOL],
    },
    {"chat_template": "{{ raise_exception('no') }}"},
    {"chat_template": "{{"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": True}},
    {"chat_template_kwargs": {"add_generation_prompt": False, "x": 1}},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
    {"response_format": {"type": "weird"}},
    {"return_token_offsets": True},
    {"kv_transfer_params": {"do_remote_decode": True}},
    {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3], "x": 1}},
    {"vllm_xargs": {"a": 1, "b": "x"}},
    {"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 4}},
    {"model": "nope"},
    {"tools": [TOOL, BARE]},
    {"tools": []},
    {"tool_choice": "auto"},
)
CHOICES: tuple[Any, ...] = (
    "auto",
    "none",
    "required",
    "weird",
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "zz"}},
)
WITH_CHOICE: tuple[Json, ...] = (
    {},
    {"parallel_tool_calls": False},
    {"response_format": {"type": "json_object"}},
    {"stream": True, "structured_outputs": {"regex": "a"}},
)
FINAL: tuple[Json, ...] = (
    {"role": "assistant", "content": "Sure, it "},
    {"role": "assistant", "content": "x\n"},
    {"role": "assistant", "content": "  lead"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": "ok", "reasoning": "why"},
    {"role": "assistant", "content": [{"type": "text", "text": "part"}]},
    {"role": "assistant", "content": "<think>\nabc"},
    {"role": "assistant", "content": "<think>\nabc\n</think>\n\nok"},
    {"role": "assistant", "content": "<think>\nabc\n<tool_call>\n{"},
    {"role": "user", "content": "U"},
)
TEXTS: tuple[Any, ...] = (
    "Hello",
    "",
    ["a", "b"],
    [1, 2],
    [[1, 2], [3]],
    ["a", 1],
    [-1],
    "naïve 日本語 — Привет 👩‍👩‍👧‍👦 e\u0301 \u200b\ttab\r\n end ",
    "<|im_end|><|eot_id|><｜User｜><end_of_turn><|end|>",
    "x" * 3000,
)
COMPLETION_FIELDS: tuple[Json, ...] = (
    {"max_tokens": None},
    {"max_tokens": 0},
    {"logprobs": 1, "echo": True},
    {"max_tokens": 0, "echo": True},
    {"add_special_tokens": False},
    {"truncate_prompt_tokens": 2},
    {"truncate_prompt_tokens": 2, "truncation_side": "left"},
    {"truncate_prompt_tokens": 2, "truncation_side": "right"},
    {"return_token_offsets": True},
    {"suffix": "x"},
    {"request_id": "r"},
    {"kv_transfer_params": {"a": 1}},
)


def corpus(name: str) -> dict[str, tuple[str, Json]]:
    """The requests to one server by name, as path and body."""
    requests = {title: (path, body) for title, path, body in _requests(name)}
    assert len(requests) == sum(1 for _ in _requests(name))
    return requests


def _requests(name: str) -> Iterator[tuple[str, str, Json]]:
    for number, message in enumerate(MESSAGES):
        yield f"message {number}", CHAT, {"messages": [message]}
        yield f"message {number} inside", CHAT, {"messages": [USER, message, USER], "tools": [TOOL]}
    for text in ARGUMENTS:
        call = {**CALL, "function": {"name": "f", "arguments": text}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = {"role": "tool", "tool_call_id": "c", "content": "18C"}
        yield f"arguments {text}", CHAT, {"messages": [USER, said, answer], "tools": [TOOL]}
    full = name in ("qwen3", "harmony", "mistral")
    for number, fields in enumerate(FIELDS):
        if full or number % 3 == len(name) % 3:
            yield f"fields {json.dumps(fields)[:60]} {number}", CHAT, {"messages": [USER], **fields}
    for choice in CHOICES:
        for number, fields in enumerate(WITH_CHOICE):
            if full or number < 2:
                body = {"messages": [USER], "tools": [TOOL, BARE], "tool_choice": choice, **fields}
                yield f"choice {json.dumps(choice)} {number}", CHAT, body
    for number, fields in enumerate(WITH_CHOICE):
        yield f"strict {number}", CHAT, {"messages": [USER], "tools": [STRICT, BARE], **fields}
    for number, final in enumerate(FINAL):
        body = {"messages": [USER, final], "continue_final_message": True, "add_generation_prompt": False}
        yield f"continued {number}", CHAT, body
        yield (
            f"continued {number} without thinking",
            CHAT,
            {**body, "chat_template_kwargs": {"enable_thinking": False}},
        )
        yield f"final {number}", CHAT, {"messages": [USER, final]}
    yield "too long", CHAT, {"messages": [{"role": "user", "content": "word " * 5000}]}
    yield (
        "cut to fit",
        CHAT,
        {"messages": [{"role": "user", "content": "word " * 5000}], "truncate_prompt_tokens": -1},
    )
    for number, text in enumerate(TEXTS):
        yield f"prompt {number}", COMPLETIONS, {"prompt": text}
    for number, fields in enumerate(COMPLETION_FIELDS):
        yield f"completion fields {number}", COMPLETIONS, {"prompt": "Hello there friend", **fields}
    yield "tokens of text", TOKENIZE, {"prompt": "Hello <|im_end|> é", "return_token_strs": True}
    yield "tokens of chat", TOKENIZE, {"messages": [USER], "return_token_strs": True}
    draw = random.Random(name)
    for number in range(ALL[name].fuzzed):
        yield f"random {number}", CHAT, _random_chat(draw)
    native = ALL[name].native
    if native is not None:
        yield from native_requests.harmony() if native[0] == "harmony" else native_requests.mistral(native[1])


WORDS = (
    *(
        "hello",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|im_end|>",
        "<|im_start|>",
        "<|eot_id|>",
    ),
    *(
        "<｜User｜>",
        "<end_of_turn>",
        "\n",
        "\n\n",
        " ",
        "  ",
        "é",
        "日本",
        "😀",
        "1234",
        "<tool_response>",
        '{"a":1}',
    ),
    *("'quoted'", "<b>&amp;", "\t", "None", "x" * 30, "\u200d", "\r\n", "user", "assistant\n"),
)


def _random_chat(draw: random.Random) -> Json:
    def text() -> str:
        return "".join(draw.choices(WORDS, k=draw.randint(0, 8)))

    def content() -> Any:
        if draw.random() < 0.6:
            return text()
        return [{"type": "text", "text": text()} for _ in range(draw.randint(1, 3))]

    def arguments() -> str:
        return draw.choice(("{}", '{"a": [1, 2.0, null]}', "bad", json.dumps({"t": text()})))

    def message() -> Json:
        role = draw.choice(("system", "user", "user", "assistant", "assistant", "tool", "developer", "weird"))
        said: Json = {"role": role, "content": content()}
        if role == "assistant":
            if draw.random() < 0.4:
                said["tool_calls"] = [
                    {
                        "id": f"c{i}",
                        "type": "function",
                        "function": {"name": draw.choice("fg"), "arguments": arguments()},
                    }
                    for i in range(draw.randint(0, 2))
                ]
            if draw.random() < 0.3:
                said["content"] = None
            if draw.random() < 0.4:
                said[draw.choice(("reasoning", "reasoning_content"))] = text()
        if role == "tool":
            said["tool_call_id"] = "c0"
        return said

    body: Json = {"messages": [message() for _ in range(draw.randint(1, 7))]}
    if draw.random() < 0.5:  # the order that strict templates demand
        body["messages"] = [
            {"role": "user" if place % 2 == 0 else "assistant", "content": content()}
            for place in range(2 * draw.randint(0, 3) + 1)
        ]
    if draw.random() < 0.4:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": function,
                    "description": text(),
                    "parameters": {
                        "type": "object",
                        "properties": {"a": {"type": "integer", "description": text()}},
                    },
                },
            }
            for function in "fg"[: draw.randint(1, 2)]
        ]
        if draw.random() < 0.3:
            body["tool_choice"] = draw.choice(("none", "auto"))
    if draw.random() < 0.3:
        body["chat_template_kwargs"] = {"enable_thinking": draw.choice((True, False))}
    if draw.random() < 0.2:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    elif draw.random() < 0.1:
        body["add_generation_prompt"] = False
    if draw.random() < 0.2:
        body["return_token_offsets"] = True
    if draw.random() < 0.2:
        body["truncate_prompt_tokens"] = draw.randint(1, 60)
    return body


ENGINE_DEFAULTS: Json = {
    "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stop": [], "stop_token_ids": [], "bad_words": [],
    "skip_special_tokens": True, "max_tokens": 16, "min_tokens": 0, "output_kind": 0,
}  # fmt: skip
"""What an engine takes for an absent field."""
INTERNAL = {"skip_clone", "skip_reading_prefix_cache", "output_text_buffer_length"}
"""vLLM's bookkeeping that reaches its wire."""


def comparable(status: int, answer: Any) -> Any:
    """An answer as both servers should give it, without what differs at random or on purpose:

    request IDs; our list of what was repaired in the history; another model's template argument that vLLM
    adds; members of structured outputs that say nothing; the wording of errors (status, type and parameter
    stay).
    """
    if status != 200:
        error = answer.get("error")
        return [status, *([error["type"], error["param"]] if isinstance(error, dict) else [error])]
    if isinstance(answer, list):
        return [comparable(status, one) for one in answer]
    fields = {name: value for name, value in answer.items() if value is not None}
    for name in ("token_ids", "tokens"):
        if name in fields:
            fields[name] = _short(fields[name])
    if "token_offsets" in fields:
        fields["token_offsets"] = _short([place for pair in fields["token_offsets"] for place in pair])
    if "sampling_params" not in fields:
        return fields
    for name in ("warnings", "request_id"):
        fields.pop(name, None)
    fields.get("reasoning_parser_kwargs", {}).get("chat_template_kwargs", {}).pop("cohere_format", None)
    params = {
        name: value
        for name, value in fields.pop("sampling_params").items()
        if name not in INTERNAL and value is not None and value != ENGINE_DEFAULTS.get(name, ...)
    }
    if "structured_outputs" in params:
        given = params["structured_outputs"]
        held = {k: v for k, v in given.items() if v not in (None, False) and not k.startswith("_")}
        if "structural_tag" in held:
            held["structural_tag"] = json.loads(held["structural_tag"])
        params["structured_outputs"] = held
    return {**fields, "sampling_params": params}


def without_eos(answer: Any, eos: tuple[int, ...]) -> Any:
    """An answer of `comparable` without the EOS IDs, which we send because an engine without a tokenizer
    knows none."""
    if isinstance(answer, list):
        return [without_eos(one, eos) for one in answer]
    if not isinstance(answer, dict) or "sampling_params" not in answer:
        return answer
    params = dict(answer["sampling_params"])
    stops = sorted(set(params.pop("stop_token_ids", ())) - set(eos))
    return {**answer, "sampling_params": {**params, "stop_token_ids": stops} if stops else params}


def _short(ids: list[int]) -> Any:
    if len(ids) <= KEPT_IDS:
        return ids
    digest = hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest()
    return [len(ids), ids[:KEPT_IDS], digest]


def request_digest(path: str, body: Json) -> str:
    """Tells an answer to this request from one to what the corpus held under its name before."""
    return hashlib.blake2b(json.dumps([path, body], sort_keys=True).encode(), digest_size=4).hexdigest()


PARTS_OF_UNIONS = {"message 2", "message 2 inside", "prompt 5"}
"""vLLM's error names the member of a union that pydantic tried last."""
OPEN_THINK_SWITCHED_OFF = "continued 7 without thinking"
"""The prompt holds an open `<think>` although thinking is switched off: reasoning is open, as the prompt
says; vLLM believes the switch."""


SPECIAL_MARKERS = {"deepseek_v3"}
"""Tool parsers whose markers are special tokens: here they reach the parser; vLLM leaves them out of its
text, and with them the calls."""


def known(server: str, name: str, ours: Any, theirs: Any) -> bool:
    """Whether a difference is one of those that are meant, and nothing else differs."""
    if server == "harmony" and _known_in_harmony(name, ours, theirs):
        return True
    if server == "mistral_spm" and isinstance(theirs, dict) and "prompt" in theirs:
        # /detokenize: mistral-common writes SentencePiece's pieces as they stand in its file.
        spelled = re.sub("<0x[0-9A-F]{2}>", "\ufffd", theirs["prompt"].replace("▁", " "))
        return bool(ours == {"prompt": spelled})
    if name in PARTS_OF_UNIONS:
        return bool(ours[:2] == theirs[:2] and ours[0] == 400)
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return False
    if ALL[server].settings.get("tool_call_parser") in SPECIAL_MARKERS:
        params = {k: v for k, v in ours.get("sampling_params", {}).items() if k != "skip_special_tokens"}
        ours = {**ours, "sampling_params": params}
    if ours == theirs:
        return True
    if name == OPEN_THINK_SWITCHED_OFF:
        return {**ours, "reasoning_ended": True} == theirs
    return name.startswith("choice") and without_schemas(ours) == without_schemas(theirs)


MEDIA = {"message 7", "message 7 inside"}
"""The harmony format has text only. vLLM leaves images out without a word; here they are refused, as for
every other text model."""


def _known_in_harmony(name: str, ours: Any, theirs: Any) -> bool:
    if name in MEDIA:
        return bool(ours == [400, "BadRequestError", None] and "token_ids" in theirs)
    if name == "cut to fit":  # vLLM refuses it too, for the room that is left for output
        return bool(ours[:2] == theirs[:2])
    body = corpus("harmony")[name][1]
    if "truncate_prompt_tokens" not in body or not isinstance(theirs, dict):
        return False
    # vLLM does not cut these prompts, but counts the room for output as if it had.
    length = ours["token_ids"][0] if isinstance(ours["token_ids"][1], list) else len(ours["token_ids"])
    room = ALL["harmony"].settings["max_model_len"] - length
    right = {**theirs, "sampling_params": {**theirs["sampling_params"], "max_tokens": room}}
    return bool(ours == right)


def without_schemas(answer: Any) -> Any:
    """A demanded call is held to its argument schema here; vLLM 0.32 asks for any JSON unless the tool is
    strict."""
    if isinstance(answer, dict):
        return {k: None if k == "json_schema" else without_schemas(v) for k, v in answer.items()}
    return [without_schemas(each) for each in answer] if isinstance(answer, list) else answer
