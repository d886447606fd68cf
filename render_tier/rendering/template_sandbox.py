"""The Jinja environment of chat templates: transformers' semantics, and a budget on time and size.

Semantics: immutable sandbox, trimmed blocks, loop controls, ``tojson`` without HTML escaping,
``raise_exception``, ``strftime_now`` (local time) and ``{% generation %}`` blocks.

Budget: Jinja cannot be interrupted, so the compiled code checks itself. Every loop iteration, macro call and
filter, also one that ``map`` applies to each item, starts with a look at the CPU clock (`template_meter`);
every operation that can build or write out something much larger than its operands tells the size of its
result first (`template_sizes`). What remains unmetered is linear in the size of existing values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from render_tier.rendering.template_meter import METER, BudgetExceeded, check_size, check_time, with_budget
from render_tier.rendering.template_sizes import (
    CONTAINERS,
    FILTER_SIZES,
    ITERATING,
    SLOT,
    collected,
    copied_size,
    format_size,
    joined_size,
    length,
    method_size,
    number,
    written_size,
)

SHORT = 1024
"""Texts up to here are not counted: to keep many of them takes lists, which are."""


def bounded_concat(pieces: Iterable[str]) -> str:
    """Join the output of a template, macro or captured block."""
    collected: list[str] = []
    total, limit = 0, METER.max_chars
    for piece in pieces:
        total += len(piece)
        if total > limit:
            break
        collected.append(piece)
    check_size(total)
    return "".join(collected)


def _join_operands(*operands: Any) -> str:
    """The ``~`` operator."""
    check_size(sum(map(written_size, operands)))
    return "".join(map(str, operands))


def _sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """``value[start:stop:step]``, which Jinja compiles past its environment."""
    part = slice(start, stop, step)
    if isinstance(value, str | bytes | list | tuple):
        try:
            size = len(range(*part.indices(len(value))))
        except (TypeError, ValueError):
            size = 0  # Python refuses it
        if size > SHORT or not isinstance(value, str):
            check_size(size * (SLOT if isinstance(value, list | tuple) else 1))
    return value[part]


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


def _checked_output(value: Any) -> Any:
    """Everything that is printed passes here before it is written out."""
    if type(value) is not str and isinstance(value, CONTAINERS):
        check_size(written_size(value))
    return value


def _metered_filter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with a look at the clock and at the size of its result first."""
    size = FILTER_SIZES.get(name)
    passed = getattr(original, "jinja_pass_arg", None)
    value_at = 0 if passed is None else 1

    def run(*arguments: Any, **named: Any) -> Any:
        check_time()
        value = arguments[value_at] if len(arguments) > value_at else None
        if size is not None:
            check_size(size(*arguments[value_at:], **named))
        elif name in ITERATING and isinstance(value, str):
            check_size(len(value) * SLOT)
        elif name == "join" or (name == "sum" and _sums_lists(arguments[value_at + 1 :], named)):
            items = value if isinstance(value, list | tuple) else collected(value)
            arguments = (*arguments[:value_at], items, *arguments[value_at + 1 :])
            rest = [*arguments[value_at + 1 :], *named.values()]
            # A sum of lists copies what it has so far for every list.
            check_size(joined_size(rest[0] if rest else "", items) * (len(items) if name == "sum" else 1))
        return original(*arguments, **named)

    if passed is not None:
        run.jinja_pass_arg = passed  # type: ignore[attr-defined]
    return run


def _sums_lists(arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    start = named.get("start", arguments[1] if len(arguments) > 1 else 0)
    return not isinstance(start, int | float)


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
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            finalize=_checked_output,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _metered_filter(name, run) for name, run in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]
        self.check_time = check_time
        self.join_operands = _join_operands
        self.sliced = _sliced

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
                if (size := len(left) + len(right)) > SHORT:
                    check_size(size)
                return left + right
            if isinstance(left, str):
                check_size(len(left) + length(right))
            elif isinstance(left, list | tuple):
                check_size((len(left) + length(right)) * SLOT)
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                check_size((left.bit_length() + right.bit_length()) // 8)
            else:
                value, times = (left, right) if isinstance(right, int) else (right, left)
                check_size(length(value) * number(times) * (SLOT if isinstance(value, list | tuple) else 1))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                check_size(left.bit_length() * max(right, 0) // 8)
        elif isinstance(left, str):
            check_size(format_size(left, right if isinstance(right, tuple) else [right]))
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        if function is check_time:
            return check_time()
        if function is _sliced:
            return _sliced(*arguments)
        if isinstance(function, BuiltinMethodType):
            owner = function.__self__
            if type(owner) is str and function.__name__ in HARMLESS_TEXT_METHODS:
                named.pop("_loop_vars", None)
                named.pop("_block_vars", None)
                if len(owner) > SHORT:
                    check_size(method_size(owner, function.__name__, (*arguments, *named.values())))
                return function(*arguments, **named)
            check_size(method_size(owner, function.__name__, (*arguments, *named.values())))
        elif function is dict or function is Namespace:
            check_size(copied_size((*arguments, named)))
        elif (form := getattr(function, "__wrapped__", None)) is not None:
            # The sandbox's own str.format, which Python does not know as a method of the text any more.
            check_size(format_size(form.__self__, _formatted(arguments, named)))
        return super().call(context, function, *arguments, **named)


def _formatted(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The values that str.format or str.format_map is given."""
    values = [
        *arguments,
        *(value for name, value in named.items() if name not in ("_loop_vars", "_block_vars")),
    ]
    return [part for value in values for part in (value.values() if isinstance(value, dict) else [value])]


def _meter_nodes(tree: nodes.Template, environment: jinja2.Environment) -> None:
    """Put a clock check at the head of every repeatable body, and bound slices and the ``~`` operator."""
    for owner in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        assert isinstance(owner, nodes.For | nodes.Macro | nodes.CallBlock)
        check = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("check_time"), [], [], None, None))
        owner.body.insert(0, check.set_lineno(owner.lineno))
    _bound_operators(tree)
    tree.set_environment(environment)


def _bound_operators(parent: nodes.Node) -> None:
    for field, value in parent.iter_fields():
        if isinstance(value, list):
            for position, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _bound_operators(item)
                    value[position] = _replacement(item)
        elif isinstance(value, nodes.Node):
            _bound_operators(value)
            setattr(parent, field, _replacement(value))


def _replacement(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        part = node.arg
        operands = [node.node, *(bound or nodes.Const(None) for bound in (part.start, part.stop, part.step))]
        cut = nodes.Call(nodes.EnvironmentAttribute("sliced"), operands, [], None, None)
        return cut.set_lineno(node.lineno)
    if not isinstance(node, nodes.Concat):
        return node
    call = nodes.Call(nodes.EnvironmentAttribute("join_operands"), list(node.nodes), [], None, None)
    return call.set_lineno(node.lineno)


def run_within(seconds: float, max_chars: int, template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render ``template`` on this thread with a budget of CPU seconds and of characters per text built.

    Raises BudgetExceeded, and whatever the template raises.
    """
    with with_budget(seconds, max_chars):
        try:
            return template.render(variables)
        except RecursionError:
            raise BudgetExceeded("the chat template calls itself too deeply") from None
