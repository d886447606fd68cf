# ruff: noqa: E501  (a template is one line)
"""A template that would run or grow without end is stopped, and costs one refused request."""

from __future__ import annotations

import contextlib

import pytest

from render_tier.protocol.errors import BadRequest
from render_tier.rendering.template import ChatTemplate, TemplateCache

USER = [{"role": "user", "content": "hi"}]


def render(source: str, seconds: float = 0.2) -> str:
    return ChatTemplate(source, seconds=seconds, max_chars=1_000_000).render(USER, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in [[0], [0]] recursive %}{{ loop([[0], [0]]) if loop.depth < 60 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set r = range(99999)|list %}" + "{% set q = r|map('string')|map('length')|sum %}" * 40,
        "{% set r = range(99999)|list %}" + "{% set r = r|sort %}" * 1000,
    ],
    ids=[
        *("nested loops", "branching macro", "branching recursion", "endless macro", "filters that loop"),
        "many filters",
    ],
)
def test_time(source: str) -> None:
    with pytest.raises(BadRequest, match=r"too long|too deeply"):
        render(source)


DOUBLING = (
    "{{% set ns = namespace(x='ab') %}}{{% for _ in range(99) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**12 }}",
        "{{ 10**12 * 'a' }}",
        "{{ [0] * 10**12 }}",
        "{{ 7 ** 10000000 ** 2 }}",
        DOUBLING.format(step="ns.x + ns.x"),
        DOUBLING.format(step="ns.x ~ ns.x"),
        DOUBLING.format(step="[ns.x, ns.x]|join"),
        DOUBLING.format(step="ns.x.replace('a', ns.x)"),
        DOUBLING.format(step="ns.x|replace('a', ns.x)"),
        "{{ messages[0].content.ljust(10**12) }}",
        "{{ messages[0].content|center(10**12) }}",
        "{{ messages[0].content.zfill(10**12) }}",
        "{{ messages[0].content|indent(10**12, true) }}",
        "{{ '\\t\\t'.expandtabs(10**12) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('a' * 70000 ~ '%0999999999d') % 1 }}",
        "{{ ('a' * 70000 ~ '{:0999999999d}').format(1) }}",
        "{{ [1]|batch(10**12, 'x')|list }}",
        "{{ messages|tojson(indent=10**9) }}",
        "{% set a = 'a' * 100000 %}{% set b %}{% for _ in range(99999) %}{{ a }}{% endfor %}{% endset %}",
        "{% set a = 'a' * 100000 %}{% macro m() %}{% for _ in range(99999) %}{{ a }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% set a = 'a' * 100000 %}{% for _ in range(99999) %}{{ a }}{% endfor %}",
        "{{ (['a' * 100000] * 100000)|join }}",
        "{{ ','.join(['a' * 100000] * 100000) }}",
        # Written out, a value counts as often as it is referred to.
        "{% set a = 'a' * 100000 %}{{ [a] * 100 }}",
        "{% set a = 'a' * 100000 %}{{ [a] * 100 ~ 'x' }}",
        "{% set a = 'a' * 100000 %}{{ ([a] * 100)|tojson }}",
        "{% set a = 'a' * 100000 %}{{ ([a] * 100)|string }}",
        "{% set a = 'a' * 100000 %}{{ ([a] * 100)|pprint }}",
        "{% set a = 'a' * 100000 %}{{ '%s' % ([a] * 100,) }}",
        "{% set a = 'a' * 100000 %}{{ '{}'.format([a] * 100) }}",
        "{% set a = 'a' * 100000 %}{{ [namespace(a=a)] * 100 }}",
        "{% set n = namespace(x=[0]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        # Loops inside of filters.
        "{% set a = 'a' * 100000 %}{{ ([a] * 1000)|map('upper')|list }}",
        "{% set a = 'a' * 100000 %}{{ ([a] * 1000)|map('upper')|join }}",
        "{{ ('a' * 1000000)|list }}",
        "{{ ([[0] * 1000] * 100)|sum(start=[])|length }}",
        # Widths that are arguments.
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '{:{w}}'.format('a', w=10 ** 10) }}",
        "{{ '{w:{w}}'.format_map({'w': 10 ** 10}) }}",
        # Bytes and numbers.
        "{{ 'a'.encode().ljust(10 ** 10) }}",
        "{{ (1).to_bytes(10 ** 10, 'big') }}",
        "{{ 'a'.encode() * 10 ** 10 }}",
        "{{ ('a,' * 400000).split(',') }}",
        "{{ ('a ' * 100000)|wordwrap(1, wrapstring='b' * 100000) }}",
        "{{ ('http://a.b ' * 50)|urlize(target='t' * 100000) }}",
        # Patterns that take time in proportion to the square of a text.
        "{{ ('a@a.' * 20000)|urlize }}",
        # Many values, each of them small enough.
        "{% for i in range(99999) %}{% set x = 'a' * 900000 %}{% endfor %}",
    ],
)
def test_size(source: str) -> None:
    with pytest.raises(BadRequest, match="too large"):
        render(source, seconds=60.0)


@pytest.mark.parametrize(
    "step",
    [
        *("c[1:]", "c[:-1]", "c[::-1]", "c['upper']()"),
        *(
            "c.upper()",
            "c.lower()",
            "c.strip('b')",
            "c.lstrip()",
            "c.rstrip()",
            "c.split('-')",
            "c.rsplit('-')",
        ),
        *(
            "r[1:]",
            "r[::2]",
            "r.copy()",
            "c.partition('-')",
            "c.removeprefix('a')",
            "d.copy()",
            "dict(d)",
            "d.fromkeys(r)",
            "(r + [1])[1:]",
        ),
    ],
)
def test_parts_and_copies_of_a_value_count_together(step: str) -> None:
    source = (
        "{% set c = 'a' * 900000 ~ ' ' %}{% set r = [0] * 110000 %}{% set d = {}.fromkeys(range(9000)) %}{% set ns = namespace(l=[], n=0) %}"
        "{% for i in range(60) %}{% set ns.l = ns.l + [STEP] %}{% endfor %}"
    )
    with pytest.raises(BadRequest, match="too large"):
        render(source.replace("STEP", step), seconds=60.0)


def test_small_parts_of_large_values_are_counted_as_such() -> None:
    source = (
        "{% set c = 'a' * 900000 %}{% set r = [0] * 100000 %}{% set ns = namespace(n=0) %}"
        "{% for i in range(1000) %}{% set ns.n = ns.n + c[:8]|length + r[-8:]|length %}"
        "{% if c.startswith('b') or c.find('a') %}{% set ns.n = 0 %}{% endif %}{% endfor %}{{ ns.n }}"
    )
    assert render(source, seconds=60.0) == "16000"


@pytest.mark.parametrize(
    "source", ["{{ range(10 ** 9)|list }}", "{{ ('9' * 5000)|int }}", "{{ 10 ** 5000 }}"]
)
def test_numbers_beyond_reason_cost_a_refusal_or_nothing(source: str) -> None:
    with contextlib.suppress(BadRequest):
        assert len(render(source)) < 10


def test_nesting_without_end() -> None:
    deep = "{% set n = namespace(x=[0]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}"
    for use in (
        "{{ n.x }}",
        "{{ n.x|tojson }}",
        "{{ n.x|string }}",
        "{{ n.x == [n.x] }}",
        "{{ [n.x]|join }}",
    ):
        with pytest.raises(BadRequest):
            render(deep + use, seconds=10.0)


def test_budget_is_per_render() -> None:
    template = ChatTemplate(
        "{% for a in range(1000) %}{{ messages[0].content }}{% endfor %}", seconds=0.5, max_chars=3000
    )
    for _ in range(50):
        assert template.render(USER, {}) == "hi" * 1000


NESTED = "{% for a in [1] %}" * 30 + "{% endfor %}" * 30
"""More blocks in each other than Python compiles."""


@pytest.mark.parametrize("source", ["{{", "{% for %}", "{% if x %}", "{% include 'x' %}{% endif %}", NESTED])
def test_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(BadRequest, match="does not compile"):
        TemplateCache(seconds=1.0, max_chars=1000, capacity=2).get(source)


def test_request_templates_are_kept_up_to_a_bound() -> None:
    cache = TemplateCache(seconds=1.0, max_chars=1000, capacity=2)
    first = cache.get("1")
    assert cache.get("1") is first
    cache.get("2")
    cache.get("3")
    assert cache.get("1") is not first


def test_reason_of_a_refusal_is_the_templates_own() -> None:
    with pytest.raises(BadRequest, match=r"^system must come first$"):
        render("{{ raise_exception('system must come first') }}")
