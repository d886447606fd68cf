"""Whether a chat template wants message content as one string or as parts, read from its syntax tree.

A template that loops over a message's content wants parts ("openai"); any other wants a string. The loop may
be over ``message.content`` itself, over a variable called ``content``, or inside a macro that is handed
``message.content``. This is vLLM's rule; clients see its effect, so its limits are kept too.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from render_tier.rendering.settings import ContentFormat

MESSAGES = "messages"
CONTENT = "content"


class _Unreadable(Exception):
    """The template binds loop variables in a way that the rule does not cover."""


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    """``tree``: the parsed template, before any change to it."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unreadable:
        return "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    message_names = set(_message_names(tree))
    macro_loops: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        handed = _parameters_given_content(tree, macro, message_names)
        for loop in macro.find_all(nodes.For):
            macro_loops.add(id(loop))
            if isinstance(loop.iter, nodes.Name) and loop.iter.name in handed:
                return True
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name, CONTENT) for name in message_names):
            return True
        if id(loop) not in macro_loops and isinstance(loop.iter, nodes.Name) and loop.iter.name == CONTENT:
            return True
    return False


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Names of variables that loops bind to single messages."""
    lists = _aliases(tree, MESSAGES)
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in lists):
            if not isinstance(loop.target, nodes.Name):
                raise _Unreadable
            yield loop.target.name


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """``name`` and every variable assigned from it, directly or through slices, filters and other aliases."""
    found, waiting = {name}, [name]
    while waiting:
        source = waiting.pop()
        for assignment in tree.find_all(nodes.Assign):
            if not _reads(assignment.node, source):
                continue
            if not isinstance(assignment.target, nodes.Name):
                raise _Unreadable
            if assignment.target.name not in found:
                found.add(assignment.target.name)
                waiting.append(assignment.target.name)
    return found


def _parameters_given_content(tree: nodes.Template, macro: nodes.Macro, message_names: set[str]) -> set[str]:
    """The macro's parameters that some call fills with a message's content."""

    def is_content(node: nodes.Node) -> bool:
        return any(_reads(node, name, CONTENT) for name in message_names)

    parameters = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given.update(name for name, value in zip(parameters, call.args, strict=False) if is_content(value))
        given.update(
            keyword.key
            for keyword in call.kwargs
            if isinstance(keyword, nodes.Keyword) and keyword.key in parameters and is_content(keyword.value)
        )
    return given


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether ``node`` is the variable ``name`` (or its ``key``), possibly filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads_plainly(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    if isinstance(node, nodes.Getattr):
        return _reads_plainly(node.node, name) and node.attr == key
    return False


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
