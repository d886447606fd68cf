"""The Jinja environment of chat templates: transformers' semantics, and a budget on time and size.

Semantics: immutable sandbox, trimmed blocks, loop controls, ``tojson`` without HTML escaping,
``raise_exception``, ``strftime_now`` (local time) and ``{% generation %}`` blocks.

Budget: Jinja cannot be interrupted, so the compiled code checks itself. Every loop iteration and macro call
starts with a look at the CPU clock; every operation that can build a text or sequence much larger than its
operands (``*``, ``**``, ``+``, ``~``, ``%``, joins, paddings, replacements, captured blocks) computes the
size of its result first. What remains unmetered is linear in the size of existing values.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class BudgetExceeded(Exception):
    """A template ran longer, or built more, than the operator allows."""


class _Meter(threading.local):
    """The budget of the render that runs on this thread."""

    deadline: float = 0.0
    max_chars: int = 0


_METER = _Meter()


def check_time() -> str:
    """Called by compiled templates; the empty string so that it may stand in an expression."""
    if time.thread_time() > _METER.deadline:
        raise BudgetExceeded("the chat template took too long to render")
    return ""


def check_size(size: int) -> None:
    if size > _METER.max_chars:
        raise BudgetExceeded("the chat template builds a text or list that is too large")


def bounded_concat(pieces: Iterable[str]) -> str:
    """Join the output of a template, macro or captured block."""
    collected: list[str] = []
    total, limit = 0, _METER.max_chars
    for piece in pieces:
        total += len(piece)
        if total > limit:
            check_size(total)
        collected.append(piece)
    return "".join(collected)


def _join_operands(*operands: Any) -> str:
    """The ``~`` operator."""
    texts = [str(operand) for operand in operands]
    check_size(sum(map(len, texts)))
    return "".join(texts)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int):
        check_size(indent * 64)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}``: marks the assistant's own text for training; rendering prints it as it is."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Callable[[], str]) -> str:
        return caller()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | bytes) else 1


def _count(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 1


def _joined_size(separator: Any, items: Any) -> int:
    if not isinstance(items, list | tuple):
        return 0
    return sum(_length(item) for item in items) + _length(separator) * len(items)


def _replaced_size(text: Any, old: Any, new: Any) -> int:
    return len(text) + (len(text) // max(_length(old), 1) + 1) * _length(new) if isinstance(text, str) else 0


def _format_size(form: str) -> int:
    return sum(int(digits[:12]) for digits in re.findall(r"\d+", form)) if len(form) < 4096 else len(form)


def _text_method_size(text: str, name: str, arguments: tuple[Any, ...]) -> int:
    """An upper bound for the length of ``text.name(*arguments)`` for the methods that can enlarge a text."""
    first = arguments[0] if arguments else None
    if name == "join":
        return _joined_size(text, first)
    if name == "replace" and len(arguments) > 1:
        return _replaced_size(text, first, arguments[1])
    if name in ("center", "ljust", "rjust", "zfill"):
        return _count(first)
    if name == "expandtabs":
        return len(text) * (_count(first) if arguments else 8)
    if name in ("format", "format_map"):
        return _format_size(text)
    return 0


def _bounded_filters() -> dict[str, Callable[..., Any]]:
    """Jinja's filters that can enlarge a value, each with its result size checked first."""
    builtin = jinja2.filters.FILTERS

    def bounded(name: str, size: Callable[..., int]) -> Callable[..., Any]:
        original = builtin[name]
        passed = getattr(original, "jinja_pass_arg", None)

        def run(*arguments: Any, **named: Any) -> Any:
            value_at = 0 if passed is None else 1
            check_size(size(*arguments[value_at:], *named.values()))
            return original(*arguments, **named)

        if passed is not None:
            run.jinja_pass_arg = passed  # type: ignore[attr-defined]
        return run

    def join_size(value: Any, separator: Any = "", *_: Any) -> int:
        return _joined_size(separator, value)

    def pad_size(value: Any, width: Any = 80, *_: Any) -> int:
        return _length(value) + _count(width)

    def indent_size(value: Any, width: Any = 4, *_: Any) -> int:
        lines = value.count("\n") + 1 if isinstance(value, str) else 1
        return _length(value) + lines * (_length(width) if isinstance(width, str) else _count(width))

    def batch_size(value: Any, count: Any, *_: Any) -> int:
        return _length(value) + _count(count)

    def replace_size(value: Any, old: Any = "", new: Any = "", *_: Any) -> int:
        return _replaced_size(str(value), old, new)

    def format_size(value: Any, *_: Any) -> int:
        return _format_size(str(value))

    sizes: Mapping[str, Callable[..., int]] = {
        "join": join_size,
        "center": pad_size,
        "indent": indent_size,
        "batch": batch_size,
        "slice": batch_size,
        "replace": replace_size,
        "format": format_size,
    }
    return {name: bounded(name, size) for name, size in sizes.items()}


DICT_ATTRIBUTES = frozenset(dir(dict))
HARMLESS_TEXT_METHODS = frozenset(
    {"endswith", "find", "lower", "lstrip", "rsplit", "rstrip", "split", "startswith", "strip", "upper"}
)
"""Methods of a text that give nothing larger than the text, and nothing that leads out of the sandbox."""
PLAIN_VALUES = frozenset({bool, int, str, list, dict})
LOOP_STATE = frozenset({"first", "index", "index0", "last", "length", "revindex", "revindex0"})


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """See the module's first lines. Compiled templates may be rendered by several threads at once."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    concat = staticmethod(bounded_concat)

    def __init__(self, rewrite: Callable[[nodes.Template], None] = lambda tree: None) -> None:
        """``rewrite`` changes each template's syntax tree before it is compiled."""
        self._rewrite = rewrite
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        self.filters["tojson"] = _tojson
        self.filters.update(_bounded_filters())
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]
        self.check_time = check_time
        self.join_operands = _join_operands

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        self._rewrite(source)
        _meter_nodes(source, self)
        return super()._generate(source, name, filename, defer_init)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox's, which looks at the type of everything: what most templates do most often is known
        to be safe, and the outcome is the same (``test_template_fast_paths``)."""
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_ATTRIBUTES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in HARMLESS_TEXT_METHODS:
                return getattr(obj, attribute)
        elif kind is LoopContext:
            if attribute in LOOP_STATE:
                return getattr(obj, attribute)
        elif kind is Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in PLAIN_VALUES:
                return value
        return super().getattr(obj, attribute)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if type(left) is str and type(right) is str:
                if len(left) + len(right) > _METER.max_chars:
                    check_size(len(left) + len(right))
                return left + right
            if isinstance(left, str | list | tuple):
                check_size(len(left) + _length(right))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                check_size((left.bit_length() + right.bit_length()) // 8)
            else:
                check_size(
                    _length(left) * _count(right) if isinstance(right, int) else _length(right) * _count(left)
                )
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                check_size(left.bit_length() * max(right, 0) // 8)
        elif isinstance(left, str):
            check_size(_format_size(left))
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        if function is check_time:
            return check_time()
        if isinstance(function, BuiltinMethodType) and isinstance(owner := function.__self__, str):
            if type(owner) is str and function.__name__ in HARMLESS_TEXT_METHODS:
                named.pop("_loop_vars", None)
                named.pop("_block_vars", None)
                return function(*arguments, **named)
            check_size(_text_method_size(owner, function.__name__, (*arguments, *named.values())))
        return super().call(context, function, *arguments, **named)


def _meter_nodes(tree: nodes.Template, environment: jinja2.Environment) -> None:
    """Put a clock check at the head of every repeatable body, and bound the ``~`` operator."""
    for owner in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        assert isinstance(owner, nodes.For | nodes.Macro | nodes.CallBlock)
        check = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None))
        owner.body.insert(0, check.set_lineno(owner.lineno))
    _bound_concatenation(tree)
    tree.set_environment(environment)


def _bound_concatenation(parent: nodes.Node) -> None:
    for field, value in parent.iter_fields():
        if isinstance(value, list):
            for position, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _bound_concatenation(item)
                    value[position] = _replacement(item)
        elif isinstance(value, nodes.Node):
            _bound_concatenation(value)
            setattr(parent, field, _replacement(value))


def _replacement(node: nodes.Node) -> nodes.Node:
    if not isinstance(node, nodes.Concat):
        return node
    call = nodes.Call(nodes.EnvironmentAttribute("join_operands"), list(node.nodes), [], None, None)
    return call.set_lineno(node.lineno)


@contextmanager
def with_budget(seconds: float, max_chars: int) -> Iterator[None]:
    """Whatever templates compile (constant expressions are evaluated) or render on this thread is metered."""
    _METER.deadline = time.thread_time() + seconds
    _METER.max_chars = max_chars
    try:
        yield
    finally:
        _METER.deadline = 0.0


def run_within(seconds: float, max_chars: int, template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render ``template`` on this thread with a budget of CPU seconds and of characters per text built.

    Raises BudgetExceeded, and whatever the template raises.
    """
    with with_budget(seconds, max_chars):
        try:
            return template.render(variables)
        except RecursionError:
            raise BudgetExceeded("the chat template calls itself too deeply") from None
