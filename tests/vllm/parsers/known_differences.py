"""Where our result is not vLLM's batch result, and why: every difference that the differential test finds.

A rule says which of the four fields it explains, when it applies (from the output and vLLM's result alone
wherever possible), the reason, the row of FIELD-REPORTS or the corpus case that it stands for, and what the
right value is: `right` asserts it on our message. A rule without such a check would hide faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.families.generators import GeneratedOutput, parsed, same_json
from tests.families.ours import ParsedMessage

FIELDS = ("reasoning", "content", "calls", "finish_reason")


@dataclass(frozen=True)
class Comparison:
    """One output with both results. ``vllm`` is the runner's batch message."""

    output: GeneratedOutput
    vllm: dict[str, Any]
    ours: ParsedMessage

    @property
    def differing(self) -> frozenset[str]:
        """The fields in which the two results are not the same; null and "" are the same text."""
        vllm, ours = self.vllm, self.ours
        theirs = [(c["name"], parsed(c["arguments"])) for c in vllm["tool_calls"]]
        mine = [(c.name, parsed(c.arguments)) for c in ours.calls]
        same_calls = len(theirs) == len(mine) and all(
            a[0] == b[0] and same_json(a[1], b[1]) for a, b in zip(theirs, mine, strict=True)
        )
        unequal = {
            "reasoning": (vllm["reasoning"] or "") != ours.reasoning,
            "content": (vllm["content"] or "") != ours.content,
            "calls": not same_calls,
            "finish_reason": vllm["finish_reason"] != ours.finish_reason,
        }
        return frozenset(name for name, differs in unequal.items() if differs)

    @property
    def answer(self) -> str:
        """What vLLM left of the output after taking its reasoning out, when it made no call of it."""
        return self.vllm["content"] or ""


@dataclass(frozen=True)
class Rule:
    name: str
    reason: str
    report: str
    explains: frozenset[str]
    applies: Callable[[Comparison], bool]
    right: Callable[[Comparison], None]
    families: frozenset[str] | None = None
    """None: any family."""


RULES: list[Rule] = []


def rule(
    name: str,
    reason: str,
    report: str,
    explains: set[str],
    applies: Callable[[Comparison], bool],
    families: set[str] | None = None,
) -> Callable[[Callable[[Comparison], None]], Callable[[Comparison], None]]:
    """Register the decorated check of the right value as a rule."""

    def register(right: Callable[[Comparison], None]) -> Callable[[Comparison], None]:
        chosen = frozenset(families) if families is not None else None
        RULES.append(Rule(name, reason, report, frozenset(explains), applies, right, chosen))
        return right

    return register


def unexplained(comparison: Comparison) -> tuple[frozenset[str], list[str]]:
    """The differing fields that no rule explains, and the names of the rules that were used.

    A rule whose check of the right value fails explains nothing; its name then carries the reason.
    """
    left = set(comparison.differing)
    used = []
    for each in RULES:
        if not left & each.explains:
            continue
        if each.families is not None and comparison.output.family not in each.families:
            continue
        if not each.applies(comparison):
            continue
        try:
            each.right(comparison)
        except AssertionError as error:
            used.append(f"{each.name}: not the right value: {error}")
            continue
        used.append(each.name)
        left -= each.explains
    return frozenset(left), used


# --- for every family


@rule(
    "required_without_a_call_is_stop",
    "with tool_choice required, vLLM's whole answers say tool_calls although no call was emitted",
    "60; vllm #53255",
    {"finish_reason"},
    lambda c: c.output.tool_choice == "required" and not c.vllm["tool_calls"] and not c.ours.calls,
)
def _required_stop(c: Comparison) -> None:
    assert c.ours.finish_reason == c.output.finish_reason


@rule(
    "cut_calls_keep_finish_reason_length",
    "vLLM's whole answers say tool_calls for a call that the engine cut; the engine's own reason is true",
    "60, 54",
    {"finish_reason"},
    lambda c: c.output.finish_reason == "length",
)
def _length(c: Comparison) -> None:
    assert c.ours.finish_reason == "length"


# --- JSON objects between tags

TAGGED_JSON = {"hermes_qwen3": "<tool_call>", "qwq": "<tool_call>", "longcat": "<longcat_tool_call>"}


def _no_call_but_marker(c: Comparison) -> bool:
    marker = TAGGED_JSON[c.output.family]
    return not c.vllm["tool_calls"] and marker in c.answer


def _no_call_but_marker(c: Comparison) -> bool:
    marker = TAGGED_JSON[c.output.family]
    return not c.vllm["tool_calls"] and marker in c.answer


@rule(
    "one_bad_call_does_not_spoil_the_others",
    "vLLM returns the whole text as content when the JSON of any call does not parse; we keep the calls that "
    "do, give a bad or cut one as far as it came, and leave as text what never looked like a call",
    "45, 54; corpus policy 3; llama3_json/second_call_truncated, hermes_qwen3/closing_tag_in_value",
    {"calls", "content", "finish_reason"},
    _no_call_but_marker,
    families=set(TAGGED_JSON),
)
def _bad_call(c: Comparison) -> None:
    marker = TAGGED_JSON[c.output.family]
    assert c.ours.calls or c.output.finish_reason == "length", "a call was begun"
    shown = c.ours.content
    answers = (c.answer, c.answer.replace(THINK_END, ""))
    assert any(a.startswith(shown) and a[len(shown) :].lstrip().startswith(marker) for a in answers), (
        "content is the text up to the first call"
    )
    _calls_are_the_models_own_text(c)


def _calls_are_the_models_own_text(c: Comparison) -> None:
    for call in c.ours.calls:
        assert call.arguments in c.output.text, "arguments are the model's own text"
        if call.complete:
            assert not isinstance(parsed(call.arguments), tuple), "a complete call has valid JSON"


# --- reasoning between <think> and </think>

THINK_END = "</think>"
THINK_END_DROPPED = {"hermes_qwen3"}
"""Reasoning parsers that remove every later end marker from their output, wherever it stands."""


def _later_think_end(c: Comparison) -> bool:
    closed = c.output.opening.reasoning == "closed"
    return c.output.text.count(THINK_END) > (0 if closed else 1)


@rule(
    "think_end_inside_a_call_stays",
    "vLLM's reasoning pass removes </think> from everything after the reasoning, also from inside a call; we "
    "read calls as the model wrote them, so a string keeps it and a broken call is not repaired",
    "47",
    {"calls", "content", "finish_reason"},
    lambda c: _later_think_end(c) and bool(c.vllm["tool_calls"]),
    families=THINK_END_DROPPED,
)
def _think_end_in_call(c: Comparison) -> None:
    _calls_are_the_models_own_text(c)
    shown = "".join(call.arguments for call in c.ours.calls) + c.ours.content
    cut = len(c.ours.calls) < len(c.vllm["tool_calls"]) or not all(call.complete for call in c.ours.calls)
    assert THINK_END in shown or cut, "the marker is in an argument, or it broke a call"


@rule(
    "stray_think_end_is_not_shown",
    "when the prompt closed reasoning, vLLM shows a </think> that the model writes all the same; with "
    "reasoning on it does not, and neither do we in either case",
    "8 (our judgement)",
    {"content"},
    lambda c: c.output.opening.reasoning == "closed" and THINK_END in (c.vllm["content"] or ""),
    families=THINK_END_DROPPED,
)
def _stray_think_end(c: Comparison) -> None:
    assert c.ours.content == c.answer.replace(THINK_END, "")
