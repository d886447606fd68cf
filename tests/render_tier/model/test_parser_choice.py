"""Parser "auto": which family a model is of, from its config, its chat template and its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from render_tier.core.formats import reasoning_format, tool_format
from render_tier.core.vocabulary import Vocabulary, build_vocabulary
from render_tier.model import parser_choice
from render_tier.model.parser_choice import choose_reasoning_parser, choose_tool_parser


def vocabulary(*tokens: str) -> Vocabulary:
    return build_vocabulary(
        {"model": {"vocab": {token: i for i, token in enumerate(tokens)}}, "decoder": {"type": "ByteLevel"}}
    )


def chosen(
    template: str, model_type: str = "", tokens: tuple[str, ...] = ()
) -> tuple[str | None, str | None]:
    config = {"model_type": model_type} if model_type else {}
    words = vocabulary(*tokens)
    return (
        choose_reasoning_parser(config, [template, None], words).parser,
        choose_tool_parser(config, [None, template], words).parser,
    )


QWEN_CALL = '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'
CODER_CALL = "<tool_call>\\n<function=example>\\n<parameter=x>\\n</parameter>\\n</function>\\n</tool_call>"
DEEPSEEK = "{{'<｜Assistant｜>'}}{% set content = content.split('</think>')[-1] %}"
DEEPSEEK_CALL = "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>'"
THINK = "{{ '<think>\\n\\n</think>' }}"
TEMPLATES = [
    ("qwen2", QWEN_CALL, (None, "hermes")),
    ("qwen3", QWEN_CALL + THINK + "enable_thinking", ("qwen3", "hermes")),
    ("qwen3_moe", CODER_CALL, (None, "qwen3_coder")),
    ("qwen3_5", CODER_CALL + THINK + "enable_thinking", ("qwen3", "qwen3_coder")),
    ("qwen2", QWEN_CALL + "<think>\\n", ("deepseek_r1", "hermes")),
    ("nemotron_h", CODER_CALL + THINK + "enable_thinking", ("nemotron_v3", "qwen3_coder")),
    ("step3p5", CODER_CALL + "<think>", ("step3p5", "step3p5")),
    ("mimo_v2", CODER_CALL + THINK, ("mimo", "mimo")),
    ("gpt_oss", "", ("openai_gptoss", "openai")),
    ("", "<|start|>assistant<|channel|>final<|message|>", ("openai_gptoss", "openai")),
    ("deepseek_v3", DEEPSEEK + DEEPSEEK_CALL + "'```json'", ("deepseek_r1", "deepseek_v3")),
    ("deepseek_v3", DEEPSEEK + "<｜tool▁call▁begin｜>{% if thinking %}", ("deepseek_v3", "deepseek_v31")),
    ("deepseek_v32", "", ("deepseek_v3", "deepseek_v32")),
    ("deepseek_v4", "", ("deepseek_v4", "deepseek_v4")),
    ("glm4_moe", "<tool_call>{name}<arg_key>{k}</arg_key></tool_call>" + THINK, ("glm47", "glm47")),
    ("kimi_k2", "<|tool_calls_section_begin|>", (None, "kimi_k2")),
    ("kimi_k2", "<|tool_calls_section_begin|><think></think>", ("kimi_k2", "kimi_k2")),
    ("minimax_m2", "<minimax:tool_call><think>", ("minimax_m2", "minimax_m2")),
    ("mistral3", "[AVAILABLE_TOOLS][TOOL_CALLS]", (None, "mistral")),
    ("mistral3", "[TOOL_CALLS][THINK][/THINK]", ("mistral", "mistral")),
    ("gemma4", "<|turn><|channel>thought<|tool_call>call:", ("gemma4", "gemma4")),
    ("gemma3_text", "<start_function_call>call:", (None, "functiongemma")),
    ("llama", "Environment: ipython{% if x %}<|python_tag|>", (None, "llama3_json")),
    ("mllama", 'Environment: ipython {"name": n, "parameters": p}', (None, "llama3_json")),
    ("llama4", "<|python_start|>", (None, "llama4_pythonic")),
    ("granite", "<|tool_call|>Here is my thought process:", ("granite", "granite")),
    ("granitemoehybrid", QWEN_CALL, (None, "granite4")),
    ("seed_oss", "<seed:tool_call><seed:think>", ("seed_oss", "seed_oss")),
    ("olmo3", "<function_calls><think>", ("olmo3", "olmo3")),
    ("jamba", "<tool_calls>", (None, "jamba")),
    ("hunyuan_v1_moe", "<tool_calls><think>", ("hunyuan_a13b", "hunyuan_a13b")),
    ("phi3", "<|tool|>", (None, "phi4_mini_json")),
    ("lfm2", "<|tool_call_start|>", (None, "lfm2")),
    ("apertus", "<|tools_prefix|>", (None, "apertus")),
    ("ernie4_5_moe", "<tool_call><think>", ("ernie45", "ernie45")),
    ("internlm2", "<|action_start|>", (None, "internlm")),
    ("longcat_flash", "<longcat_tool_call>", (None, "longcat")),
    ("llama", "{{ message.content }}", (None, None)),
]
TOKENS = [
    (("<|channel|>", "<|call|>"), ("openai_gptoss", "openai")),
    (("｜DSML｜",), (None, "deepseek_v32")),
    (("<|python_tag|>",), (None, "llama3_json")),
    (("[TOOL_CALLS]", "[THINK]"), ("mistral", "mistral")),
    (("<think>", "<tool_call>"), (None, None)),
]


@pytest.mark.parametrize(("model_type", "template", "parsers"), TEMPLATES)
def test_a_template_and_a_type_say_the_family(
    model_type: str, template: str, parsers: tuple[str | None, str | None]
) -> None:
    assert chosen(template, model_type) == parsers


@pytest.mark.parametrize(("tokens", "parsers"), TOKENS)
def test_without_a_template_the_vocabulary_may_say_it(
    tokens: tuple[str, ...], parsers: tuple[str | None, str | None]
) -> None:
    """Only by markers that no other family has: many tokenizers have <think> that no model writes."""
    assert chosen("", tokens=tokens) == parsers


def test_every_rule_names_a_parser_that_exists() -> None:
    for rule in (*parser_choice._TOOLS, *parser_choice._TOOL_TOKENS):
        assert tool_format(rule.parser)
    for rule in (*parser_choice._REASONING, *parser_choice._REASONING_TOKENS):
        assert reasoning_format(rule.parser)


def test_no_rule_is_hidden_by_an_earlier_one() -> None:
    for rules in (parser_choice._TOOLS, parser_choice._REASONING):
        for place, rule in enumerate(rules):
            for earlier in rules[:place]:
                hides = set(earlier.marks) <= set(rule.marks) and (
                    not earlier.types
                    or (bool(rule.types) and all(t.startswith(earlier.types) for t in rule.types))
                )
                assert not hides, f"{rule} is never reached because of {earlier}"


REAL = {
    "qwen3": ("qwen3", "hermes"),
    "deepseek_v3": (None, "deepseek_v3"),
    "gptoss": ("openai_gptoss", "openai"),
    "llama3_1": (None, None),  # this template shows no tools, this tokenizer has no <|python_tag|>
    "gemma3": (None, None),
    "smollm2": (None, None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str, model_dir: Callable[[str], Path]) -> None:
    directory = model_dir(name)

    def read(file: str) -> dict[str, Any]:
        path = directory / file
        return json.loads(path.read_text()) if path.is_file() else {}

    words = build_vocabulary(read("tokenizer.json"))
    config, template = read("config.json"), read("tokenizer_config.json").get("chat_template")
    got = [choose(config, [template], words) for choose in (choose_reasoning_parser, choose_tool_parser)]
    assert tuple(choice.parser for choice in got) == REAL[name]
    assert all(choice.reason for choice in got)
