"""``--reasoning-parser auto`` and ``--tool-call-parser auto``: the family of a model, from its own files.

The chat template shows the model its calls and its reasoning in the family's own markers, so it is the best
witness; ``model_type`` decides between families that share them. A model without a template may still have
the markers as tokens. The first rule that holds wins: rarer markers stand before common ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from render_tier.core.vocabulary import Vocabulary

AUTO: Final = "auto"


@dataclass(frozen=True)
class Choice:
    """``parser``: its name, None where nothing speaks for one. ``reason``: what does, for the log."""

    parser: str | None
    reason: str


@dataclass(frozen=True)
class _Rule:
    """Holds where the template has all ``marks`` and the model's type begins with one of ``types``, if any
    are given."""

    parser: str
    marks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


_TOOLS: Final = (
    _Rule("openai", types=("gpt_oss",)),
    _Rule("openai", ("<|channel|>", "<|message|>")),
    _Rule("deepseek_v4", ("<｜DSML｜tool_calls>",)),
    _Rule("deepseek_v4", types=("deepseek_v4",)),
    _Rule("deepseek_v32", ("<｜DSML｜function_calls>",)),
    _Rule("deepseek_v32", types=("deepseek_v32",)),
    _Rule("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    _Rule("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    _Rule("kimi_k2", ("<|tool_calls_section_begin|>",)),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("glm47", ("<arg_key>",)),
    _Rule("seed_oss", ("<seed:tool_call>",)),
    _Rule("step3p5", ("<function=",), ("step3p5", "step3p7")),
    _Rule("mimo", ("<function=",), ("mimo",)),
    _Rule("qwen3_coder", ("<function=", "<parameter=")),
    _Rule("functiongemma", ("<start_function_call>",)),
    _Rule("gemma4", ("<|tool_call>",)),
    _Rule("mistral", ("[TOOL_CALLS]",)),
    _Rule("longcat", ("<longcat_tool_call>",)),
    _Rule("lfm2", ("<|tool_call_start|>",)),
    _Rule("apertus", ("<|tools_prefix|>",)),
    _Rule("olmo3", ("<function_calls>",)),
    _Rule("internlm", ("<|action_start|>",)),
    _Rule("jamba", ("<tool_calls>",), ("jamba",)),
    _Rule("hunyuan_a13b", ("<tool_calls>",)),
    _Rule("phi4_mini_json", ("<|tool|>",)),
    _Rule("granite", ("<|tool_call|>",)),
    _Rule("granite4", ("<tool_call>",), ("granite",)),
    _Rule("ernie45", ("<tool_call>",), ("ernie4_5",)),
    _Rule("llama4_pythonic", ("<|python_start|>",)),
    _Rule("llama3_json", ("<|python_tag|>",)),
    _Rule("llama3_json", ('"parameters"', "ipython")),
    _Rule("hermes", ("<tool_call>",)),
)
_REASONING: Final = (
    _Rule("openai_gptoss", types=("gpt_oss",)),
    _Rule("openai_gptoss", ("<|channel|>", "<|message|>")),
    _Rule("deepseek_v4", ("<｜DSML｜tool_calls>",)),
    _Rule("deepseek_v4", types=("deepseek_v4",)),
    _Rule("deepseek_v3", ("<｜DSML｜function_calls>",)),
    _Rule("deepseek_v3", types=("deepseek_v32",)),
    _Rule("deepseek_v3", ("<｜Assistant｜>", "</think>", "thinking")),
    _Rule("deepseek_r1", ("<｜Assistant｜>", "</think>")),
    _Rule("kimi_k2", ("<|tool_calls_section_begin|>", "<think>")),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("glm47", ("<arg_key>", "<think>")),
    _Rule("seed_oss", ("<seed:think>",)),
    _Rule("gemma4", ("<|channel>",)),
    _Rule("mistral", ("[THINK]",)),
    _Rule("granite", ("Here is my thought process:",)),
    _Rule("granite_thinking_parser", ("<think>",), ("granite",)),
    _Rule("hunyuan_a13b", ("<think>",), ("hunyuan",)),
    _Rule("step3p5", ("<think>",), ("step3p5", "step3p7")),
    _Rule("mimo", ("<think>",), ("mimo",)),
    _Rule("nemotron_v3", ("<think>",), ("nemotron",)),
    _Rule("olmo3", ("<think>",), ("olmo3",)),
    _Rule("ernie45", ("<think>",), ("ernie4_5",)),
    _Rule("qwen3", ("<think>",), ("qwen3",)),
    _Rule("qwen3", ("<think>", "enable_thinking")),
    _Rule("deepseek_r1", ("<think>",)),
)
_TOOL_TOKENS: Final = (
    _Rule("openai", ("<|channel|>", "<|call|>")),
    _Rule("deepseek_v32", ("｜DSML｜",)),
    _Rule("kimi_k2", ("<|tool_calls_section_begin|>",)),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("gemma4", ("<|tool_call>",)),
    _Rule("mistral", ("[TOOL_CALLS]",)),
    _Rule("llama3_json", ("<|python_tag|>",)),
)
_REASONING_TOKENS: Final = (
    _Rule("openai_gptoss", ("<|channel|>", "<|call|>")),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("gemma4", ("<|channel>",)),
    _Rule("mistral", ("[THINK]",)),
)


def choose_reasoning_parser(
    config: Mapping[str, Any], templates: Sequence[str | None], vocabulary: Vocabulary
) -> Choice:
    """``config``: the model's config.json, {} for none. ``templates``: all that it may be asked with."""
    return _choose(_REASONING, _REASONING_TOKENS, config, templates, vocabulary)


def choose_tool_parser(
    config: Mapping[str, Any], templates: Sequence[str | None], vocabulary: Vocabulary
) -> Choice:
    """As `choose_reasoning_parser`."""
    return _choose(_TOOLS, _TOOL_TOKENS, config, templates, vocabulary)


def _choose(
    rules: Sequence[_Rule],
    token_rules: Sequence[_Rule],
    config: Mapping[str, Any],
    templates: Sequence[str | None],
    vocabulary: Vocabulary,
) -> Choice:
    template = "\n".join(text for text in templates if text)
    model_type = str(config.get("model_type") or "")
    for rule in rules:
        typed = not rule.types or model_type.startswith(rule.types)
        if typed and all(mark in template for mark in rule.marks):
            return Choice(rule.parser, _reason(rule, "the chat template has", model_type))
    for rule in token_rules:
        if all(vocabulary.token_id(mark) is not None for mark in rule.marks):
            return Choice(rule.parser, _reason(rule, "the vocabulary has", model_type))
    seen = f"model_type {model_type!r}" if model_type else "no model_type"
    return Choice(None, f"no known marker in the chat template or the vocabulary, {seen}")


def _reason(rule: _Rule, where: str, model_type: str) -> str:
    reasons = [f"{where} {' and '.join(rule.marks)}"] if rule.marks else []
    return ", ".join(reasons + ([f"model_type is {model_type!r}"] if rule.types else []))
