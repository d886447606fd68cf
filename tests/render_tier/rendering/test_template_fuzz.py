"""Any template over any messages: a text within the budget or a refusal, nothing else, and no hang."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2.defaults import DEFAULT_TESTS

from render_tier.protocol.errors import BadRequest
from render_tier.rendering.template import TemplateCache
from render_tier.rendering.template_sandbox import TemplateEnvironment

MAX_CHARS = 100_000
NAMES = ("messages", "tools", "m", "ns", "ns.x", "loop", "loop.index", "missing", "messages[0]", "m.content")
ATOMS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(("'a'", "'{:99999999}{}'", "'%99999999d'", "'<b>a@b.c http://d.e'", "[]", "{}", "none")),
    st.sampled_from(
        ("true", "0", "-1", "3", "999999999", "1.5", "range(99999)", "'\\n' * 999", "cycler('a')")
    ),
)
FILTERS = sorted(TemplateEnvironment().filters)
METHODS = sorted(
    {name for kind in (str, bytes, list, dict, int) for name in dir(kind) if not name.startswith("__")}
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "*", "/", "%", "~", "//", "**", "and", "or", "in", "==", "<"]),
            inner,
        ),
        st.builds("{}|{}".format, inner, st.sampled_from(FILTERS)),
        st.builds("{}|{}({})".format, inner, st.sampled_from(FILTERS), inner),
        st.builds("{}|{}({}, {})".format, inner, st.sampled_from(FILTERS), inner, inner),
        st.builds("{}|map('{}')|list".format, inner, st.sampled_from(FILTERS)),
        st.builds("({}).{}({})".format, inner, st.sampled_from(METHODS), inner),
        st.builds("({})[{}]".format, inner, inner),
        st.builds("({})[{}:]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} is {})".format, inner, st.sampled_from(sorted(DEFAULT_TESTS))),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("dict(a={})".format, inner),
        st.builds("namespace(x={})".format, inner),
    )


EXPRESSIONS = st.recursive(ATOMS, _compound, max_leaves=8)


def _block(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{{% for m in {} %}}{}{{% endfor %}}".format, EXPRESSIONS, inner),
        st.builds("{{% if {} %}}{}{{% endif %}}".format, EXPRESSIONS, inner),
        st.builds("{{% set ns.x = {} %}}{}".format, EXPRESSIONS, inner),
        st.builds("{{% set v %}}{}{{% endset %}}{{{{ v }}}}".format, inner),
        st.builds("{{% macro f(m) %}}{}{{% endmacro %}}{{{{ f({}) }}}}".format, inner, EXPRESSIONS),
        st.builds("{{% filter {} %}}{}{{% endfilter %}}".format, st.sampled_from(FILTERS), inner),
        st.builds("{{% generation %}}{}{{% endgeneration %}}".format, inner),
        st.lists(inner, max_size=3).map("".join),
    )


TEMPLATES = st.recursive(
    st.one_of(EXPRESSIONS.map("{{{{ {} }}}}".format), st.text("{}%# a-<|>", max_size=6)), _block, max_leaves=6
)
CONTENT = st.one_of(
    st.text(max_size=8), st.none(), st.lists(st.just({"type": "text", "text": "t"}), max_size=2)
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("user", "tool", "x")), "content": CONTENT}),
    min_size=1,
    max_size=3,
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(TEMPLATES, MESSAGES)
def test_a_text_or_a_refusal(source: str, messages: list[dict[str, Any]]) -> None:
    source = "{% set ns = namespace(x=1) %}" + source
    cache = TemplateCache(seconds=0.2, max_chars=MAX_CHARS, capacity=1)
    with contextlib.suppress(BadRequest):
        assert len(cache.get(source).render(messages, {})) <= MAX_CHARS
