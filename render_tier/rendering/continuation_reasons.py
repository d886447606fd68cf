"""Why a prompt does not go on from the IDs of the turn before: which message differs, and what about it.

The template says where a message stands: what follows the place at which a prompt changes when the message's
text gets longer. So a message is found by a few renders, whatever the template looks at, and no mark is put
where a template could treat it as something else. Only refused continuations pay for this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from render_tier.core.formats import prompt_reasoning
from render_tier.core.table import ReasoningFormat
from render_tier.core.vocabulary import Vocabulary
from render_tier.rendering.continuation import Parted, common_bytes, ends_inside_character, spelled_length

Messages = Sequence[dict[str, Any]]
Reason = Literal[
    "stop_token",
    "reasoning_dropped",
    "reasoning_missing",
    "generation_prompt_dropped",
    "answer_rewritten",
    "answer_differs",
    "message_differs",
    "frame_differs",
    "history_ends_early",
    "partial_character",
    "cut_inside_token",
    "unknown",
]
REASONS: tuple[str, ...] = get_args(Reason)
DETAILS: dict[Reason, str] = {
    "stop_token": "the output ends with a stop token that is not how the template closes this message",
    "reasoning_dropped": "the template does not write this message's reasoning at this place any more",
    "reasoning_missing": "the token IDs hold reasoning, which this message does not bring",
    "generation_prompt_dropped": "the template began the answer with text that it leaves out of a history",
    "answer_rewritten": "the template writes this answer in other words, spaces or order than the model did",
    "answer_differs": "this message is not the answer that the token IDs spell",
    "message_differs": "this message, with its images and videos, is not what the token IDs spell",
    "frame_differs": "what stands before this message's text differs: its role, an image or video in it "
    "(of another size, added or left out), messages that were added or left out, tools and where they are "
    "written, or what the template is told beside the messages",
    "history_ends_early": "the messages end before the token IDs do",
    "partial_character": "the output ends inside a character",
    "cut_inside_token": "the text after the output is part of a token that began in it",
    "unknown": "the message could not be found",
}
ADDED = "‡"
"""What a text is made longer by: hardly what follows it in a template, so the prompt changes right there."""
INSTRUCTIONS = ("system", "developer")
NEAR = 8
"""Tokens on both sides of the place at which texts part, in which the start of reasoning is looked for."""


@dataclass(frozen=True)
class Given:
    """What a turn was: prompt and output."""

    token_ids: list[int]
    prompt_length: int


@dataclass(frozen=True)
class Difference:
    reason: Reason
    message: int | None
    """Index of the message; their number when more are needed; None when it could not be found."""


class Diagnosis:
    """Of one refused continuation."""

    def __init__(
        self,
        messages: Messages,
        given: Given,
        rendered: Sequence[int],
        vocabulary: Vocabulary,
        render: Callable[[list[dict[str, Any]]], list[int] | None],
        *,
        reasoning: ReasoningFormat | None,
        max_renders: int,
    ) -> None:
        """``render``: the prompt of other messages, all else as in the request; None where they are refused.
        ``reasoning``: how the model writes reasoning, where that is known."""
        self._messages = messages
        self._given = given
        self._rendered = rendered
        self._vocabulary = vocabulary
        self._render = render
        self._reasoning = reasoning
        self._renders_left = max_renders
        self._ends: dict[int, int] = {-1: -1}
        self._instructions: dict[int, int] = {}
        """Where those end that do not end before the texts part."""

    def difference(self, parted: Parted) -> Difference:
        found = self._message_at(parted.agreed)
        if found is None:
            return Difference("unknown", None)
        if parted.rendered == len(self._rendered) or found == len(self._messages):
            return Difference("history_ends_early", len(self._messages))
        if parted.given == len(self._given.token_ids):
            return Difference("cut_inside_token", found)
        if self._messages[found]["role"] == "assistant":
            return Difference(self._about_answer(found, parted), found)
        start = self._place_of_change(found, _longer(self._messages[found], at_end=False))
        if start is None or parted.agreed >= start:
            return Difference("message_differs", found)
        before = found - 1
        if found and self._messages[before]["role"] == "assistant" and self._is_last_answer(before, parted):
            return Difference(self._about_answer(before, parted), before)  # longer than its message
        between = [(end, i) for i, end in self._instructions.items() if parted.agreed <= end < start]
        return Difference("frame_differs", min(between)[1] if between else found)

    def _about_answer(self, index: int, parted: Parted) -> Reason:
        message, given = self._messages[index], self._given
        reasoning = message.get("reasoning")
        if reasoning:
            if self._place_of_change(index, {**message, "reasoning": reasoning + ADDED}) is None:
                return "reasoning_dropped"
        elif self._place_of_change(index, _longer(message, at_end=False)) is None and message.get("content"):
            return "reasoning_dropped"  # it was in the content, of which the template has left out the start
        is_last = self._is_last_answer(index, parted)
        if is_last and parted.given < given.prompt_length:
            return "generation_prompt_dropped"
        if not reasoning and self._spells_reasoning(parted.given):
            return "reasoning_missing"
        if not is_last:
            return "message_differs"
        output = given.token_ids[given.prompt_length :]
        if parted.given >= len(given.token_ids) - 4 and ends_inside_character(output, self._vocabulary):
            return "partial_character"
        text = self._vocabulary.text(output)
        return "answer_rewritten" if all(part in text for part in _said(message)) else "answer_differs"

    def _is_last_answer(self, index: int, parted: Parted) -> bool:
        """Whether the message is the output, and not an answer that stood in the prompt."""
        length = self._given.prompt_length
        if parted.given >= length or index == 0:
            return parted.given >= length
        before = self._rendered_with(list(self._messages[:index]))
        prompt = self._given.token_ids[:length]
        return before is not None and common_bytes(before, prompt, self._vocabulary) == spelled_length(
            prompt, self._vocabulary
        )

    def _spells_reasoning(self, place: int) -> bool:
        """Whether the given IDs are in reasoning at ``place``, or begin it there."""
        fmt, ids, text = self._reasoning, self._given.token_ids, self._vocabulary.text
        if fmt is None:
            return False
        if prompt_reasoning(fmt, ids[:place], self._vocabulary):
            return True
        first = max(place - NEAR, 0)
        before, around = text(ids[first:place]), text(ids[first : place + NEAR])
        return around.find(fmt.start, max(len(before) - len(fmt.start) + 1, 0)) >= 0

    def _message_at(self, place: int) -> int | None:
        """The first message whose text does not end before ``place``; their number behind the last one.

        Instructions are looked at one by one: templates write them at the start of the prompt, or of the last
        user message. The others stand in their order.
        """
        others = []
        for index, message in enumerate(self._messages):
            if message["role"] not in INSTRUCTIONS:
                others.append(index)
            elif self._holds(index, place):
                return index
        low, high = 0, len(others)
        while low < high:
            middle = (low + high) // 2
            end = self._end(others, middle)
            if end is None:
                return None
            low, high = (low, middle) if place <= end else (middle + 1, high)
        return others[low] if low < len(others) else len(self._messages)

    def _holds(self, index: int, place: int) -> bool:
        """Whether ``place`` is in the text of a message."""
        end = self._end_of_own(index)
        if end is None or place > end:
            return False
        self._instructions[index] = end
        start = self._place_of_change(index, _longer(self._messages[index], at_end=False))
        return start is not None and start <= place

    def _end(self, others: list[int], number: int) -> int | None:
        """Where the text of ``others[number]`` ends; that of the one before where the template does not write
        it. None when it takes too many renders to say."""
        first = number
        while first not in self._ends:
            place = self._end_of_own(others[first])
            if place is not None:
                self._ends[first] = place
                break
            if self._renders_left <= 0:
                return None
            first -= 1
        for between in range(first + 1, number + 1):
            self._ends[between] = self._ends[first]
        return self._ends[number]

    def _end_of_own(self, index: int) -> int | None:
        """As `_end`, None where the template writes nothing of the message."""
        places = (self._place_of_change(index, longer) for longer in _longer_at_end(self._messages[index]))
        return next((place for place in places if place is not None), None)

    def _place_of_change(self, index: int, message: dict[str, Any]) -> int | None:
        """Byte of the rendered text at which it changes with ``message`` at ``index``; None: it does not, or
        is refused."""
        messages = [*self._messages[:index], message, *self._messages[index + 1 :]]
        changed = self._rendered_with(messages)
        if changed is None or changed == list(self._rendered):
            return None
        return common_bytes(self._rendered, changed, self._vocabulary)

    def _rendered_with(self, messages: list[dict[str, Any]]) -> list[int] | None:
        if self._renders_left <= 0:
            return None
        self._renders_left -= 1
        return self._render(messages)


def _longer_at_end(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message with more at its end, in the ways in which a template may show it: a call more, a longer
    call, more text."""
    calls = message.get("tool_calls")
    if calls:
        yield {**message, "tool_calls": [*calls, calls[-1]]}
        function = calls[-1].get("function") or {}
        last = {**calls[-1], "function": {**function, "arguments": _more_arguments(function)}}
        yield {**message, "tool_calls": [*calls[:-1], last]}
    yield _longer(message, at_end=True)


def _longer(message: dict[str, Any], *, at_end: bool) -> dict[str, Any]:
    """The message with more text at the end or the start of its content."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": content + ADDED if at_end else ADDED + content}
    more = {"type": "text", "text": ADDED}
    places = [
        i for i, part in enumerate(content) if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    if not places:
        return {**message, "content": [*content, more] if at_end else [more, *content]}
    place = places[-1 if at_end else 0]
    part = content[place]
    text = part["text"] + ADDED if at_end else ADDED + part["text"]
    return {**message, "content": [*content[:place], {**part, "text": text}, *content[place + 1 :]]}


def _more_arguments(function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return json.dumps(
        {**(arguments if isinstance(arguments, dict) else {}), ADDED: ADDED}, ensure_ascii=False
    )


def _said(message: dict[str, Any]) -> list[str]:
    """What an answer must spell if it is this message, apart from the white space around."""
    content = message.get("content") or ""
    texts = (
        [content]
        if isinstance(content, str)
        else [part if isinstance(part, str) else str(part.get("text") or "") for part in content]
    )
    names = [str((call.get("function") or {}).get("name") or "") for call in message.get("tool_calls") or ()]
    return [text.strip() for text in (*texts, *names, message.get("reasoning") or "")]
