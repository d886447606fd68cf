"""Special tokens only where the template itself writes them (``--escape-user-specials``).

A special token's spelling in a message, name, document, tool result or template argument is text, whatever
the template does with it. Texts are not searched for spellings, since a template may join, cut or change
them. Instead the template's own literals are marked: in each literal that flows into the output, a spelling
becomes two characters, a private-use one that occurs nowhere in the request and one that says which token.
Only these marks become special tokens; all else is encoded by an engine that knows none.

Literals that a template compares with, or hands to a method, keep their spelling: they are looked for in
texts. A template that puts special tokens together out of pieces (``'<|' + message.role + '|>'``) would lose
them, so such a template is refused at start (`guarded_chat`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import nodes

from render_tier.protocol.errors import BadRequest
from render_tier.rendering.json_texts import texts_of

MARKS = tuple(map(chr, range(0xF8F0, 0xF900)))
"""Private-use characters, of which one that the request does not hold is taken."""
FIRST_INDEX = 0x100000
MOST_SPECIALS = 0xFFFE
"""What plane 16 has room for."""
PASSED_ON = frozenset({"default", "d", "join"})
"""Filters whose arguments reach the output."""


class SpecialGuard:
    def __init__(self, specials: Mapping[str, int]) -> None:
        """``specials``: the text and ID of every special token."""
        if not specials or len(specials) > MOST_SPECIALS:
            raise ValueError("no special tokens, or too many")
        self._texts = sorted(specials, key=len, reverse=True)
        self._ids = [specials[text] for text in self._texts]
        self._index = {text: chr(FIRST_INDEX + position) for position, text in enumerate(self._texts)}
        self._spelled = re.compile("|".join(map(re.escape, self._texts)))
        self.ids = frozenset(specials.values())

    def free_mark(self, *values: Any) -> str:
        """A mark that occurs nowhere in ``values`` (JSON-like). Raises BadRequest when all do."""
        texts = list(texts_of(values))
        for mark in MARKS:
            if not any(mark in text for text in texts):
                return mark
        raise BadRequest("the request holds every private-use character from U+F8F0 to U+F8FF")

    def marked(self, text: str, mark: str) -> str:
        """``text``, which is the template's or the model's own, with each spelling as its two characters."""
        return self._spelled.sub(lambda found: mark + self._index[found.group()], text)

    def marked_values(self, values: Mapping[str, str | list[str]], mark: str) -> dict[str, str | list[str]]:
        """`marked` for named texts and lists of texts."""
        return {
            name: self.marked(value, mark)
            if isinstance(value, str)
            else [self.marked(text, mark) for text in value]
            for name, value in values.items()
        }

    def split(self, marked: str, mark: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of the marked text, each with the ID of the special token that it is, if it is one."""
        first, *rest = marked.split(mark)
        if first:
            yield first, None
        for piece in rest:
            position = ord(piece[0]) - FIRST_INDEX if piece else -1
            if 0 <= position < len(self._texts):
                yield self._texts[position], self._ids[position]
                piece = piece[1:]
            if piece:  # also where the template cut a mark in two
                yield piece, None

    def plain(self, marked: str, mark: str) -> str:
        return "".join(text for text, _ in self.split(marked, mark))

    def cut(self, marked: str, mark: str, start: int, length: int) -> str:
        """Marked text of ``length`` characters of the plain text from ``start`` on. Of a special token that
        is cut in two the rest is text."""
        kept, at = list[str](), 0
        for text, special in self.split(marked, mark):
            first, last = max(start - at, 0), min(start + length - at, len(text))
            at += len(text)
            if first >= last:
                continue
            part = text[first:last]
            kept.append(part if special is None or part != text else self.marked(part, mark))
        return "".join(kept)

    def mark_literals(self, tree: nodes.Template, mark: str) -> None:
        """Mark what the template writes, in place."""
        _mark_statements(tree, lambda text: self.marked(text, mark))


def _mark_statements(node: nodes.Node, change: Callable[[str], str]) -> None:
    if isinstance(node, nodes.Output):
        _mark_all(node.nodes, change)
    elif isinstance(node, nodes.Assign):
        _mark(node.node, change)
    elif isinstance(node, nodes.For):
        _mark(node.iter, change)
    elif isinstance(node, nodes.With):
        _mark_all(node.values, change)
    elif isinstance(node, nodes.Macro | nodes.CallBlock):
        _mark_all(node.defaults, change)
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Stmt):
            _mark_statements(child, change)


def _mark_all(expressions: Iterable[nodes.Node], change: Callable[[str], str]) -> None:
    for expression in expressions:
        _mark(expression, change)


def _mark(node: nodes.Node | None, change: Callable[[str], str]) -> None:
    """Mark the literals that can become (a part of) the value of ``node``."""
    if isinstance(node, nodes.TemplateData):
        node.data = change(node.data)
    elif isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            node.value = change(node.value)
    elif isinstance(node, nodes.BinExpr):
        _mark_all((node.left, node.right), change)
    elif isinstance(node, nodes.Concat):
        _mark_all(node.nodes, change)
    elif isinstance(node, nodes.CondExpr):
        _mark(node.expr1, change)
        _mark(node.expr2, change)
    elif isinstance(node, nodes.List | nodes.Tuple):
        _mark_all(node.items, change)
    elif isinstance(node, nodes.Dict):
        _mark_all((pair.value for pair in node.items), change)
    elif isinstance(node, nodes.Getitem | nodes.Getattr):
        _mark(node.node, change)
    elif isinstance(node, nodes.Filter):
        _mark(node.node, change)
        if node.name in PASSED_ON:
            _mark_arguments(node, change)
    elif isinstance(node, nodes.Call):
        _mark(node.node, change)
        if isinstance(node.node, nodes.Name):  # a macro or namespace(), which pass their arguments on
            _mark_arguments(node, change)


def _mark_arguments(node: nodes.Filter | nodes.Call, change: Callable[[str], str]) -> None:
    _mark_all(node.args, change)
    _mark_all((argument.value for argument in node.kwargs if isinstance(argument, nodes.Keyword)), change)
