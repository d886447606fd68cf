"""A user's own parser families: Python files, declarative files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from render_tier.core.formats import reasoning_format, register, tool_format
from render_tier.core.formats.hermes import HERMES
from render_tier.core.formats.qwen3 import QWEN3
from render_tier.model import ModelLoadError, load_assets
from render_tier.model.parser_plugins import load_plugin
from tests.render_tier.core.formats.documented import documented_examples
from tests.support.reading import calls, read

SIMPLE = """
[[reasoning]]
name = "acme_think"
start = "<thought>"
end = "</thought>"
ended_by = ["<use>"]
disabled_by = {{ thinking = false }}

[[tool]]
name = "acme_{body}"
start = "<use>"
end = "</use>"
body = "{body}"
{more}
"""
OUTPUTS = {
    "json": '<use>{"name": "ping", "arguments": {"x": 1}}</use>',
    "json_array": '<use>[{"name": "ping", "arguments": {"x": 1}}]</use>',
    "header": '<use>ping -> {"x": 1}</use>',
    "python": "<use>[ping(x=1)]</use>",
}


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("body", OUTPUTS)
def test_a_declared_family_of_every_body(body: str, tmp_path: Path) -> None:
    more = 'separator = "->"' if body == "header" else ""
    load_plugin(written(tmp_path / "acme.toml", SIMPLE.format(body=body, more=more)))
    text = f"<thought>Hm.</thought>Well. {OUTPUTS[body]}\n{OUTPUTS[body]} Done."
    got = read(text, reasoning="acme_think", tool=f"acme_{body}")
    assert (got.reasoning, calls(got)) == ("Hm.", [("ping", '{"x": 1}')] * 2)
    assert (got.content.startswith("Well. "), got.content.endswith(" Done.")) == (True, True)
    assert read("<thought>Hm.<use>", reasoning="acme_think").content == "<use>"


def test_a_declared_section_around_calls_and_no_text_after_them(tmp_path: Path) -> None:
    tool = {
        "name": "acme_section",
        "start": "<use>",
        "end": "</use>",
        "section": "<uses>",
        "section_end": "</uses>",
        "text_after": False,
    }
    load_plugin(written(tmp_path / "acme.json", json.dumps({"tool": [tool]})))
    got = read(f"Well.<uses>{OUTPUTS['json'] * 2}</uses> Done.", tool="acme_section")
    assert (got.content, calls(got)) == ("Well.", [("ping", '{"x": 1}')] * 2)


def test_the_worked_examples_of_the_documentation_work(tmp_path: Path) -> None:
    """Each is loaded as it stands there, and reads the output that stands below it."""
    examples = documented_examples()
    assert {path.suffix for path, _, _ in examples} == {".py", ".toml"}
    for path, source, output in examples:
        assert source.count("\n") < 60
        load_plugin(written(tmp_path / path.name, source))
        got = read(output, reasoning="acme", tool="acme" if path.suffix == ".py" else "acme_simple")
        assert (got.reasoning, got.content, calls(got)) == ("Hm.", "Well. ", [("ping", '{"x": 1}')])


def test_the_names_of_plugins_can_be_given_to_the_server(tmp_path: Path, smollm2_dir: Path) -> None:
    plugin = written(tmp_path / "acme.toml", SIMPLE.format(body="json", more=""))
    with_plugin = load_assets(str(smollm2_dir), tool_parser="acme_json", parser_plugins=[plugin])
    assert with_plugin.tool_parser == "acme_json"
    changed = written(tmp_path / "changed.toml", SIMPLE.format(body="json", more="text_after = false"))
    other = load_assets(str(smollm2_dir), tool_parser="acme_json", parser_plugins=[changed])
    assert with_plugin.fingerprint != other.fingerprint, "replicas with other plugins do not agree"


def test_an_unknown_name_is_refused_with_the_valid_ones(tmp_path: Path, smollm2_dir: Path) -> None:
    plugin = written(tmp_path / "acme.toml", SIMPLE.format(body="json", more=""))
    with pytest.raises(ModelLoadError, match=r"unknown tool call parser 'acme_jsn'.*acme_json.*hermes"):
        load_assets(str(smollm2_dir), tool_parser="acme_jsn", parser_plugins=[plugin])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.py", "1 / 0", "ZeroDivisionError"),
        ("a.py", "def", "SyntaxError"),
        ("a.toml", "= 1", "Invalid"),
        ("a.json", "{", "Expecting"),
        ("a.json", "[]", "object"),
        ("a.toml", "", "no \\[\\[reasoning\\]\\]"),
        ("a.txt", "", "not a .py"),
        ("a.toml", '[[tool]]\nname = "x"\nstart = "<"\nboddy = 1', "boddy"),
        ("a.toml", '[[tool]]\nname = "x"\nstart = "<"\nbody = "yaml"', "yaml"),
        ("a.toml", '[[tool]]\nname = "x"\nstart = ""', "start marker"),
        ("a.toml", '[[tool]]\nname = "x"\nstart = "<"\nsection = "["', "go together"),
        ("a.toml", '[[tool]]\nname = "x"\nstart = "<"\nbody = "header"', "separator"),
        ("a.toml", '[[reasoning]]\nname = "x"\nstart = "<"\nend = "<"', "different markers"),
        ("a.toml", '[[tool]]\nname = "hermes"\nstart = "<"', "'hermes' is the name of a parser that exists"),
        ("a.toml", '[[tool]]\nname = "auto"\nstart = "<"', "'auto'"),
    ],
)
def test_a_wrong_plugin_says_what_is_wrong(name: str, text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        load_plugin(written(tmp_path / name, text))


def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"gone\.toml"):
        load_plugin(str(tmp_path / "gone.toml"))


def test_a_format_of_this_package_is_not_replaced() -> None:
    for fmt in (HERMES, QWEN3):
        with pytest.raises(ValueError, match="exists"):
            register(fmt)
    assert tool_format("hermes") is HERMES
    assert reasoning_format("qwen3") is QWEN3
