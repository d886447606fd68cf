"""Every promised family has a table, a file of tests, and outputs that the laws are tried on."""

from __future__ import annotations

from pathlib import Path

from render_tier.core import formats
from render_tier.core.formats import REASONING_NAMES, TOOL_NAMES, reasoning_format, tool_format
from tests.families.catalogue import FAMILIES

REASONING = (
    *("qwen3", "deepseek_r1", "deepseek_v3", "deepseek_v4", "openai_gptoss", "glm45", "kimi_k2"),
    *("minimax_m2", "mistral", "gemma4", "granite", "granite_thinking_parser", "nemotron_v3", "seed_oss"),
    *("step3p5", "mimo", "olmo3", "ernie45", "hunyuan_a13b"),
)
TOOLS = (
    *("hermes", "qwen3_json", "qwen3_coder", "qwen3_xml", "llama3_json", "llama4_json", "pythonic"),
    *("llama4_pythonic", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "openai", "glm45"),
    *("glm47", "kimi_k2", "minimax_m2", "mistral", "gemma4", "functiongemma", "granite", "granite4"),
    *("phi4_mini_json", "seed_oss", "step3p5", "mimo", "xlam", "jamba", "internlm", "olmo3", "longcat"),
    *("ernie45", "hunyuan_a13b", "apertus", "lfm2"),
)
NO_FAMILY = {"__init__", "bypassed", "declared", "guided", "plain", "think_tags"}
"""Modules of the package that are no family's table."""
TESTED_WITH = {"deepseek_v3_reasoning": "deepseek_v3"}


def test_vllms_names_are_offered() -> None:
    assert set(REASONING) <= set(REASONING_NAMES)
    assert set(TOOLS) <= set(TOOL_NAMES)


def test_every_table_has_a_file_of_tests() -> None:
    package = Path(formats.__file__).parent
    tables = {path.stem for path in package.glob("*.py")} - NO_FAMILY
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert {TESTED_WITH.get(table, table) for table in tables} <= tested


def test_the_laws_are_tried_on_every_family() -> None:
    reasoning = {reasoning_format(w.reasoning_parser).name for w in FAMILIES.values() if w.reasoning_parser}
    tools = {tool_format(w.tool_parser).name for w in FAMILIES.values() if w.tool_parser}
    assert {reasoning_format(name).name for name in REASONING} <= reasoning
    assert {tool_format(name).name for name in TOOLS} <= tools
