"""The models that continuations are tried on: their tokenizer and template, and how they write an answer.

GLM's and Kimi's tokenizers are not at hand: Qwen3's stands in with their special tokens added, under
templates of our own in their formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from render_tier.server.service import Service
from tests.conftest import MODELS
from tests.families import values
from tests.families.writers import Call
from tests.support.render_app import load_service, settings_for
from tests.support.render_corpus import NATIVE, SERVERS, lay_out

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Answer:
    reasoning: str | None
    content: str
    calls: list[Call]


Write = Callable[[Random, Answer, str], str]
"""(random, answer, style of JSON) -> the output's text, without the stop token."""


@dataclass(frozen=True)
class Family:
    name: str
    write: Write
    stops: tuple[str, ...]
    """What the model ends with: after an answer, after calls, and tokens that no template writes there."""
    parsers: dict[str, Any] = field(default_factory=dict)
    thinks: bool = False
    calls: int = 0
    """Most calls in an answer."""
    content_with_calls: bool = True
    alternates: bool = False
    """No system message behind the first, and users and answers take turns."""
    leads_with_space: bool = False
    """The first token of a text begins with a space that the tokenizer puts there; clients may strip it."""
    moves_head: bool = False
    """Tools and system message stand before the last user message, wherever that is."""
    switches: tuple[dict[str, Any], ...] = ({},)
    text: values.TextKnobs = field(default_factory=values.TextKnobs)


def _plain(rng: Random, answer: Answer, style: str) -> str:
    return answer.content


def _qwen3(rng: Random, answer: Answer, style: str) -> str:
    calls = [
        f'<tool_call>\n{{"name": "{call.name}", '
        f'"arguments": {values.dumps(rng, call.arguments, style=style)}}}\n</tool_call>'
        for call in answer.calls
    ]
    thought = "" if answer.reasoning is None else f"<think>\n{answer.reasoning}\n</think>\n\n"
    return thought + "\n".join([*([answer.content] if answer.content else []), *calls])


def _glm(rng: Random, answer: Answer, style: str) -> str:
    def value(given: Any) -> str:
        return given if isinstance(given, str) else values.dumps(rng, given, style=style)

    thought = "" if answer.reasoning is None else f"\n<think>{answer.reasoning}</think>"
    calls = [
        f"\n<tool_call>{call.name}"
        + "".join(
            f"\n<arg_key>{key}</arg_key>\n<arg_value>{value(given)}</arg_value>"
            for key, given in call.arguments.items()
        )
        + "\n</tool_call>"
        for call in answer.calls
    ]
    return thought + (f"\n{answer.content}" if answer.content else "") + "".join(calls)


def _kimi(rng: Random, answer: Answer, style: str) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>"
        f"{values.dumps(rng, call.arguments, style=style)}<|tool_call_end|>"
        for number, call in enumerate(answer.calls)
    )
    section = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    return answer.content + section


def _deepseek(rng: Random, answer: Answer, style: str) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n"
        f"{values.dumps(rng, call.arguments, style=style)}\n```<｜tool▁call▁end｜>"
        for call in answer.calls
    )
    return answer.content + (f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else "")


def _harmony(rng: Random, answer: Answer, style: str) -> str:
    messages = [] if answer.reasoning is None else [f"<|channel|>analysis<|message|>{answer.reasoning}"]
    if answer.calls:
        call = answer.calls[0]
        arguments = values.dumps(rng, call.arguments, style=style)
        head = f" to=functions.{call.name}<|channel|>commentary json<|message|>"
        if style != "json":
            head = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
        messages.append(head + arguments)
    else:
        messages.append(f"<|channel|>final<|message|>{answer.content}")
    return "<|end|><|start|>assistant".join(messages)


def _mistral(rng: Random, answer: Answer, style: str) -> str:
    if not answer.calls:
        return answer.content
    return "[TOOL_CALLS]" + values.dumps(
        rng, [{"name": call.name, "arguments": call.arguments} for call in answer.calls], style=style
    )


def _mistral_v13(rng: Random, answer: Answer, style: str) -> str:
    if not answer.calls:
        return answer.content
    return "".join(
        f"[TOOL_CALLS]{call.name}[ARGS]{values.dumps(rng, call.arguments, style=style)}"
        for call in answer.calls
    )


THINKING: tuple[dict[str, Any], ...] = ({}, {}, {"chat_template_kwargs": {"enable_thinking": False}})
MISTRAL_PARSER = {"tool_call_parser": "mistral"}
QUIET = values.TextKnobs(braces=False, near_markers=0.03)
MISTRAL: dict[str, Any] = {"calls": 2, "content_with_calls": False, "alternates": True, "text": QUIET}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "qwen3",
            _qwen3,
            ("<|im_end|>", "<|im_end|>", "<|endoftext|>"),
            thinks=True,
            calls=3,
            switches=THINKING,
        ),
        Family("smollm2", _plain, ("<|im_end|>", "<|im_end|>", "<|endoftext|>")),
        Family("llama3_1", _plain, ("<|eot_id|>", "<|eot_id|>", "<|end_of_text|>"), text=QUIET),
        Family("deepseek_v3", _deepseek, ("<｜end▁of▁sentence｜>",) * 2, calls=2),
        Family("gemma3", _plain, ("<end_of_turn>", "<end_of_turn>", "<eos>"), alternates=True),
        Family(
            "harmony",
            _harmony,
            ("<|return|>", "<|call|>", "<|end|>"),
            thinks=True,
            calls=1,
            content_with_calls=False,
        ),
        Family(
            "glm",
            _glm,
            ("<|user|>", "<|observation|>", "<|endoftext|>"),
            {"reasoning_parser": "glm47", "tool_call_parser": "glm47"},
            thinks=True,
            calls=2,
            switches=THINKING,
        ),
        Family(
            "kimi",
            _kimi,
            ("<|im_end|>", "<|im_end|>", "<|endoftext|>"),
            {"tool_call_parser": "kimi_k2"},
            calls=3,
        ),
        Family("mistral", _mistral, ("</s>", "</s>"), MISTRAL_PARSER, moves_head=True, **MISTRAL),
        Family(
            "mistral_spm",
            _mistral,
            ("</s>", "</s>"),
            MISTRAL_PARSER,
            moves_head=True,
            leads_with_space=True,
            **MISTRAL,
        ),
        Family("mistral_v13", _mistral_v13, ("</s>", "</s>"), MISTRAL_PARSER, **MISTRAL),
    )
}
STAND_INS = {
    "glm": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    "kimi": ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
}
MARKERS = {
    "glm": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "kimi": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
}


def load(family: Family, directory: Path) -> Service:
    """The family's model as the render tier serves it; ``directory`` is empty."""
    options: dict[str, Any] = {"max_model_len": 8192, **family.parsers}
    if "tool_call_parser" in family.parsers:
        options["enable_auto_tool_choice"] = True
    name = family.name
    if name in STAND_INS:
        model = _stand_in(name, directory / name)
    elif name in SERVERS or name in NATIVE:
        server = {**SERVERS, **NATIVE}[name]
        model = lay_out(server, MODELS / server.tokenizer, directory / name)
        options = {**server.settings, **options}
    else:
        model = MODELS / name
    return load_service(settings_for(model, **options))


def _stand_in(name: str, directory: Path) -> Path:
    directory.mkdir(parents=True)
    source = MODELS / "qwen3"
    data = json.loads((source / "tokenizer.json").read_text())
    after = max(token["id"] for token in data["added_tokens"]) + 1
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    tokens = [(text, True) for text in STAND_INS[name]] + [(text, False) for text in MARKERS[name]]
    for number, (text, special) in enumerate(tokens):
        data["added_tokens"].append({"id": after + number, "content": text, "special": special, **plain})
    (directory / "tokenizer.json").write_text(json.dumps(data))
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["chat_template"] = (TEMPLATES / f"{name}.jinja").read_text()
    config.pop("added_tokens_decoder", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text((source / "config.json").read_text())
    return directory
