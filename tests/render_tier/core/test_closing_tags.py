"""Where the value of a tagged parameter ends, in every family that writes parameters between tags."""

from __future__ import annotations

import json
from random import Random

import pytest

from render_tier.core.formats import tool_format
from render_tier.core.xml_call import XmlCallFormat
from tests.families import values
from tests.families.catalogue import FAMILIES
from tests.families.writers import Call
from tests.render_tier.core.formats.reading import calls, read

TAGS = {
    **dict.fromkeys(
        ("qwen3_coder", "qwen_coder_plain", "nemotron_v3", "granite_thinking", "step3p5", "mimo"),
        "</parameter>",
    ),
    "seed_oss": "</parameter>",
    "minimax_m2": "</parameter>",
    "glm47": "</arg_value>",
    "deepseek_v32": "</｜DSML｜parameter>",
    "deepseek_v4": "</｜DSML｜parameter>",
}
ARGUMENTS = {"title": "tide", "body": "high at noon"}


def written(family: str, replace: str, by: str) -> str:
    """An output of one call of two string parameters, in which each ``replace`` is something else."""
    writer = FAMILIES[family]
    opening = writer.openings[0]
    before = writer.think[1] if opening.reasoning == "open" else ""
    call = writer.calls(Random(1), [Call("write_note", ARGUMENTS)], list(values.TOOLS))
    assert replace in call
    return before + call.replace(replace, by)


def test_every_family_of_tagged_parameters_is_here() -> None:
    tagged = {
        name
        for name, writer in FAMILIES.items()
        if writer.tool_parser is not None
        for state in tool_format(writer.tool_parser).states.values()
        if isinstance(state.body, XmlCallFormat)
    }
    assert tagged == TAGS.keys() | {"functiongemma"}, "FunctionGemma's tag is the same before and behind"


@pytest.mark.parametrize("stray", [">", '"', '">', "}", ",", "/>", "```", ">>>>"])
@pytest.mark.parametrize("family", TAGS)
def test_signs_that_stray_behind_a_closing_tag_are_no_part_of_the_value(family: str, stray: str) -> None:
    got = read(family, written(family, TAGS[family], TAGS[family] + stray))
    [(name, arguments)] = calls(got)
    assert (name, json.loads(arguments)) == ("write_note", ARGUMENTS)
    assert got.content.strip() == ""


@pytest.mark.parametrize("between", [" and more", " x", "<b>", "; then", ">>>>>"])
@pytest.mark.parametrize("family", TAGS)
def test_a_closing_tag_with_text_behind_it_is_text(family: str, between: str) -> None:
    spoken = f"see {TAGS[family]}{between}"
    got = read(family, written(family, "high at noon", spoken))
    [(_, arguments)] = calls(got)
    assert json.loads(arguments) == {**ARGUMENTS, "body": spoken}
