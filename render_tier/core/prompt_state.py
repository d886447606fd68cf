"""Whether a prompt leaves reasoning open: decided from its end, in the current turn only."""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from typing import Any

from render_tier.core.table import CONTENT, ReasoningFormat, ToolFormat
from render_tier.core.vocabulary import Vocabulary


def starts_with_reasoning(
    fmt: ReasoningFormat,
    tool: ToolFormat | None,
    prompt_ids: Reversible[int] | None,
    vocabulary: Vocabulary,
    template_kwargs: Mapping[str, Any],
) -> bool | None:
    """Whether the answer to a prompt goes on with reasoning; None where the format's own start decides.

    The prompt itself wins; the template's switches count where it says nothing or is not known.
    """
    if prompt_ids is not None:
        state = prompt_reasoning(fmt, prompt_ids, vocabulary, tool)
        if state is not None:
            return state
    if switched(fmt.enabled_by, template_kwargs):
        return True
    return False if switched(fmt.disabled_by, template_kwargs) else None


def switched(values: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a switch has one of its values: exactly, since 0 is not False to a template."""
    return any(
        given.get(name) == value and type(given[name]) is type(value) for name, value in values.items()
    )


def prompt_reasoning(
    fmt: ReasoningFormat,
    prompt_ids: Reversible[int],
    vocabulary: Vocabulary,
    tool: ToolFormat | None = None,
) -> bool | None:
    """True: the prompt leaves reasoning open. False: it closed it. None: its current turn says nothing.

    The current turn is what follows the last special token that is not itself a reasoning marker; a marker in
    an earlier turn or in the instructions says nothing about this answer. Where a call of ``tool`` ends
    reasoning, its marker closes it in the prompt too.
    """
    start, end = vocabulary.token_id(fmt.start), vocabulary.token_id(fmt.end)
    calls = _call_markers(fmt, tool, vocabulary)
    special = vocabulary.special_ids
    turn: list[int] = []
    for token_id in reversed(prompt_ids):
        if token_id == start:
            return True
        if token_id == end or token_id in calls:
            return False
        if token_id in special:
            break
        turn.append(token_id)
    if start is not None and end is not None:
        return None
    text = vocabulary.text(turn[::-1])  # markers that are not single tokens
    opened, closed = text.rfind(fmt.start), text.rfind(fmt.end)
    return None if opened == closed else opened > closed


def _call_markers(fmt: ReasoningFormat, tool: ToolFormat | None, vocabulary: Vocabulary) -> frozenset[int]:
    if tool is None or not fmt.ended_by_tools:
        return frozenset()
    ends = tool.reasoning_ends
    markers = (marker for marker in tool.states[CONTENT].on if ends is None or marker in ends)
    found = map(vocabulary.token_id, markers)
    return frozenset(token_id for token_id in found if token_id is not None)
