# ruff: noqa: E501  (a template is one line)
"""Whether a template takes message content as a string or as parts."""

from __future__ import annotations

import pytest

from render_tier.model import ModelAssets
from render_tier.rendering.template import ChatTemplate


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for c in m.content|reverse %}{% endfor %}{% endfor %}", "openai"),
        ("{% set l = messages %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}", "openai"),
        (
            "{% set l = messages[1:]|list %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
        ("{% for m in other %}{% for c in m.content %}{% endfor %}{% endfor %}", "string"),
        (
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(body) %}{% for c in body %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(body) %}{% for c in body %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(body=m.content) }}{% endfor %}",
            "openai",
        ),
        (
            "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.tools) }}{% endfor %}",
            "string",
        ),
        ("{% for role, content in messages %}{% for c in content %}{% endfor %}{% endfor %}", "string"),
        ("no variables", "string"),
    ],
)
def test_detection(source: str, expected: str) -> None:
    assert ChatTemplate(source, seconds=1.0, max_chars=1000).content_format == expected


def test_served_models(qwen3_assets: ModelAssets, smollm2_assets: ModelAssets) -> None:
    for assets in (qwen3_assets, smollm2_assets):
        assert assets.chat_template is not None
        assert ChatTemplate(assets.chat_template, seconds=1.0, max_chars=1000).content_format == "string"
