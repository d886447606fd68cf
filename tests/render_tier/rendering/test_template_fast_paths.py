"""The sandbox's short cuts for what templates do most often: the outcome is Jinja's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from render_tier.rendering.template_meter import with_budget
from render_tier.rendering.template_sandbox import LOOP_STATE, TemplateEnvironment

NAMES = st.one_of(
    st.sampled_from(
        sorted({*dir(str), *dir(dict), *dir(list), *dir(LoopContext), *dir(Namespace), *LOOP_STATE})
    ),
    st.sampled_from(("role", "content", "x", "_private", "__class__", "__init__", "items", "")),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=6) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("role", "content", "x", "items", "keys")), inner, max_size=3)
    ),
    max_leaves=6,
)


def outcome(work: Callable[[], Any]) -> tuple[str, Any]:
    try:
        value = work()
        if isinstance(value, jinja2.Undefined):
            return "undefined", (value._undefined_message, value._undefined_exception)
        if callable(value):
            return "function", getattr(value, "__name__", type(value))
        return "value", value
    except Exception as error:
        return "error", (type(error), str(error))


def objects() -> st.SearchStrategy[Any]:
    environment = ImmutableSandboxedEnvironment()
    loops = st.lists(VALUES, min_size=1, max_size=3).map(
        lambda items: LoopContext(items, environment.undefined)
    )
    return st.one_of(VALUES, VALUES.map(lambda value: Namespace(x=value, role=len)), loops)


@given(objects(), NAMES)
def test_attributes(owner: Any, name: str) -> None:
    if isinstance(owner, LoopContext):
        next(owner)
    ours, theirs = TemplateEnvironment(), ImmutableSandboxedEnvironment()
    assert outcome(lambda: ours.getattr(owner, name)) == outcome(lambda: theirs.getattr(owner, name))


EXPRESSIONS = (
    "m.{method}({argument})",
    "m['{method}']({argument})",
    "a + b",
    "(a ~ b) + m",
    "[a[1:], (b[::-1])]",
    "m[:1] ~ a[:b]",
    "[m.role, m.content, m.missing, m.items, m.keys() | list]",
    "[loop.index0, loop.first, loop.last, loop.index, loop.length]",
    "[ns.x, ns.y, ns._z]",
)


@given(
    expression=st.sampled_from(EXPRESSIONS),
    method=st.sampled_from(sorted(name for name in dir(str) if not name.startswith("_"))),
    argument=st.sampled_from(("", "'a'", "' '", "1", "None", "['x', 'y']", "chars='a'", "sep='a'")),
    value=VALUES,
    a=VALUES,
    b=VALUES,
)
def test_expressions(expression: str, method: str, argument: str, value: Any, a: Any, b: Any) -> None:
    source = (
        "{% set ns = namespace(x=a) %}{% for m in [v, v] %}{{ "
        + expression.format(method=method, argument=argument)
        + " }}{% endfor %}"
    )
    values = {"v": value, "a": a, "b": b}

    def rendered(environment: jinja2.Environment) -> tuple[str, Any]:
        with with_budget(5.0, 10**6):
            return outcome(lambda: environment.from_string(source).render(values))

    assert rendered(TemplateEnvironment()) == rendered(ImmutableSandboxedEnvironment())


@pytest.mark.parametrize("name", ["format", "format_map", "__class__", "join", "replace", "encode"])
def test_what_is_not_harmless_takes_the_sandboxes_way(name: str) -> None:
    from render_tier.rendering.template_sandbox import HARMLESS_TEXT_METHODS

    assert name not in HARMLESS_TEXT_METHODS
