"""Where our result is not vLLM's batch result, and why: every difference that the differential test finds.

A rule says which of the four fields it explains, when it applies (from the output and vLLM's result alone
wherever possible), the reason, the row of FIELD-REPORTS or the corpus case that it stands for, and what the
right value is: `right` asserts it on our message. A rule without such a check would hide faults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.families import reference
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

    @cached_property
    def right(self) -> ParsedMessage | None:
        """The message as another reading of the whole output gives it (`tests.families.reference`); None
        where there is none."""
        try:
            return reference.message_of(self.output)
        except reference.NotRead:
            return None

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


def meant(comparison: Comparison) -> list[str]:
    """In what our message is not what the model meant, where the output says what that is."""
    intended, ours = comparison.output.intended, comparison.ours
    if intended is None:
        return []
    before, after = _visible(intended["content"]), _visible(intended["after"])
    calls = [(name, arguments) for name, arguments in intended["calls"]]
    same_calls = [name for name, _ in calls] == [call.name for call in ours.calls] and all(
        call.complete and same_json(parsed(call.arguments), arguments)
        for call, (_, arguments) in zip(ours.calls, calls, strict=True)
    )
    wrong = {
        "reasoning": ours.reasoning.strip() != intended["reasoning"].strip(),
        "content": _visible(ours.content) not in (before, before + after),
        "calls": not same_calls,
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


def _visible(text: str) -> str:
    return "".join(text.split())


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
    "blank_content_is_content",
    "with a forced tool_choice and no call, vLLM drops content of white space alone; without one it shows it",
    "59 (our judgement)",
    {"content"},
    lambda c: c.output.tool_choice not in ("auto", "none", None) and not c.answer and not c.ours.calls,
)
def _blank_content(c: Comparison) -> None:
    assert c.ours.content.isspace()


@rule(
    "text_that_is_no_call_stays",
    "held to JSON by tool_choice, vLLM loses an answer that is none; it is shown",
    "59, 56",
    {"content"},
    lambda c: (
        c.output.writer.json_choice
        and c.output.tool_choice not in ("auto", "none", None)
        and not (c.answer or c.ours.calls)
    ),
)
def _no_json(c: Comparison) -> None:
    assert c.ours.content
    assert c.output.text.endswith(c.ours.content)


@rule(
    "cut_calls_keep_finish_reason_length",
    "vLLM's whole answers say tool_calls for a call that the engine cut; the engine's own reason is true",
    "60, 54",
    {"finish_reason"},
    lambda c: c.output.finish_reason == "length",
)
def _length(c: Comparison) -> None:
    assert c.ours.finish_reason == "length"


@rule(
    "without_tools_the_text_is_kept",
    "with tool_choice none or without tools vLLM removes the text of a call that the model writes all the "
    "same; we show it (a setting gives vLLM's behaviour)",
    "61; vllm #55080; corpus policy 5",
    {"content"},
    lambda c: (
        c.output.family != "openai_gptoss" and (c.output.tools is None or c.output.tool_choice == "none")
    ),
)
def _text_kept(c: Comparison) -> None:
    assert not c.ours.calls
    text, shown = c.output.text, c.ours.content
    for marker in (*c.output.writer.think, *THINK_MARKERS):  # acted upon in the answer too
        text, shown = text.replace(marker.strip(), ""), shown.replace(marker.strip(), "")
    assert text.rstrip().endswith(shown.rstrip()), "content is the rest of the output, calls included"


def _same_names(c: Comparison) -> bool:
    return [call["name"] for call in c.vllm["tool_calls"]] == [call.name for call in c.ours.calls]


@rule(
    "json_arguments_are_verbatim",
    "vLLM's whole answers rewrite the values of JSON arguments by the schema (for a string, 5 becomes text "
    "and null a word), its streams do not; we send what the model wrote",
    "47",
    {"calls"},
    _same_names,
    families={"kimi_k2", "mistral", "granite", "llama3_json", "openai_gptoss"},
)
def _verbatim(c: Comparison) -> None:
    for call in c.ours.calls:
        assert call.arguments in c.output.text or call.arguments == "{}"


def _rounded(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            return int(float(value)) if abs(value) < 10**300 else value
        case list():
            return [_rounded(item) for item in value]
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
    return value


@rule(
    "integers_stay_exact",
    "vLLM reads a parameter of type number as a double and loses digits of integers above 2^53; we keep them",
    "52; the corpus compares integers exactly",
    {"calls"},
    _same_names,
)
def _exact(c: Comparison) -> None:
    for theirs, mine in zip(c.vllm["tool_calls"], c.ours.calls, strict=True):
        assert same_json(_rounded(parsed(theirs["arguments"])), _rounded(parsed(mine.arguments)))


@rule(
    "arguments_end_where_their_json_ends",
    "what follows the JSON value before the end marker is no part of the arguments; vLLM passes it on",
    "47; mistral does the same since gh#48975",
    {"calls"},
    lambda c: _same_names(c) and any(isinstance(parsed(x["arguments"]), tuple) for x in c.vllm["tool_calls"]),
)
def _json_ends(c: Comparison) -> None:
    for theirs, mine in zip(c.vllm["tool_calls"], c.ours.calls, strict=True):
        whole = mine.complete and theirs["arguments"].strip().startswith(mine.arguments)
        assert whole or same_json(parsed(theirs["arguments"].strip()), parsed(mine.arguments.strip()))


# --- DeepSeek's section of calls

THINK_MARKERS = (
    *("<think>", "</think>", "[THINK]", "[/THINK]"),
    *("<|channel>", "<channel|>", "<seed:think>", "</seed:think>"),
)
DEEPSEEK = {"deepseek_v31", "deepseek_r1"}
SECTION = "<｜tool▁calls▁begin｜>"
DEEPSEEK_HEADS = {
    "deepseek_v31": re.compile(r"<｜tool▁call▁begin｜>\s*([^<\s][^<]*?)\s*<｜tool▁sep｜>"),
    "deepseek_r1": re.compile(r"<｜tool▁call▁begin｜>[^<]*(?:<｜tool▁sep｜>\s*)+([^\s<]+)\s*\n```json"),
}
"""What begins a call, with its name."""


def _in_order(part: str, whole: str) -> bool:
    """Whether all characters of ``part`` stand in ``whole`` in this order."""
    rest = iter(whole)
    return all(char in rest for char in part)


@rule(
    "a_call_does_not_need_its_end",
    "vLLM finds calls by one pattern from the first to the last marker, within a line, and a wrong word "
    "before the separator makes the whole text content; we keep a call that is cut or whose end marker is "
    "missing, as far as it came, and arguments over several lines",
    "54, 56; deepseek_v3/pretty_printed; corpus policy 3",
    {"calls", "content", "finish_reason"},
    lambda c: SECTION in c.output.text and len(c.ours.calls) > len(c.vllm["tool_calls"]),
    families=DEEPSEEK,
)
def _endless(c: Comparison) -> None:
    section = c.output.text.partition(SECTION)[2]
    assert [call.name for call in c.ours.calls] == DEEPSEEK_HEADS[c.output.family].findall(section)
    for call in c.ours.calls:
        given = section.partition(call.name)[2]
        assert call.arguments in given or call.arguments == "{}"
    assert c.ours.content.startswith(c.output.text.partition(SECTION)[0].rpartition("</think>")[2].rstrip())
    assert _in_order(c.ours.content, c.output.text)


@rule(
    "a_marker_is_no_part_of_a_name",
    "vLLM's pattern takes everything between two markers for the name, other markers included; we start the "
    "call anew at a repeated marker, and names have no white space around them",
    "58 (kind)",
    {"calls", "content"},
    lambda c: any("<｜" in x["name"] or x["name"] != x["name"].strip() for x in c.vllm["tool_calls"]),
    families=DEEPSEEK,
)
def _no_marker_in_name(c: Comparison) -> None:
    names = [call.name for call in c.ours.calls]
    assert all("<｜" not in name and name == name.strip() for name in names)
    assert [x["name"].rpartition("｜>")[2].strip() for x in c.vllm["tool_calls"]] == names
    assert _in_order(c.ours.content, c.output.text)


@rule(
    "text_of_a_broken_call_stays",
    "where the section of calls holds no call, vLLM drops its text; we show what was no call",
    "56; corpus policy 3",
    {"content"},
    lambda c: SECTION in c.output.text,
    families=DEEPSEEK,
)
def _broken_call_text(c: Comparison) -> None:
    if c.ours.calls:
        assert c.ours.content.startswith(c.answer)
        assert _in_order(c.ours.content, c.output.text)
        return
    text, shown = c.output.text.rpartition("</think>")[2], c.ours.content
    for marker in c.output.writer.markers:
        text, shown = text.replace(marker, ""), shown.replace(marker, "")
    assert text.startswith(shown.rstrip()), "all text of the answer up to the end of the section"


@rule(
    "a_marker_token_ends_a_call",
    "vLLM's pattern reads over the end of the section inside arguments; a model cannot mean that token as "
    "text, so the call ends there",
    "58 (kind)",
    {"calls"},
    lambda c: _same_names(c) and any("<｜" in x["arguments"] for x in c.vllm["tool_calls"]),
    families=DEEPSEEK,
)
def _marker_ends_call(c: Comparison) -> None:
    for theirs, mine in zip(c.vllm["tool_calls"], c.ours.calls, strict=True):
        same = same_json(parsed(theirs["arguments"]), parsed(mine.arguments))
        assert same or theirs["arguments"].startswith(mine.arguments + "<｜"), "up to the marker"


@rule(
    "reasoning_starts_at_the_start",
    "vLLM's whole answers drop everything before the first <think>, wherever it stands; it opens reasoning "
    "only where reasoning may start, and elsewhere it is text",
    "43 (kind); deepseek_r1/content_with_markers",
    {"reasoning", "content", "calls", "finish_reason"},
    lambda c: "<think>" in c.output.text.lstrip()[1:],
    families=DEEPSEEK | {"qwq", "deepseek_v32"},
)
def _late_opener(c: Comparison) -> None:
    plain = c.output.text.replace("<think>", "")
    assert plain.startswith(c.ours.reasoning.replace("<think>", "")), "nothing before the marker is lost"
    _calls_are_the_models_own_text(c)


# --- Kimi's section of calls


@rule(
    "a_cut_header_is_no_call",
    "vLLM's whole answers make a call of a header that was cut or has no arguments marker, without arguments",
    "54; kimi_k2/truncated_id (diverges)",
    {"calls", "finish_reason"},
    lambda c: (
        len(c.vllm["tool_calls"]) == len(c.ours.calls) + 1 and c.vllm["tool_calls"][-1]["arguments"] == "{}"
    ),
    families={"kimi_k2"},
)
def _cut_header(c: Comparison) -> None:
    for theirs, mine in zip(c.vllm["tool_calls"], c.ours.calls, strict=False):
        assert theirs["name"] == mine.name
        assert same_json(parsed(theirs["arguments"]), parsed(mine.arguments))


@rule(
    "a_call_without_its_index_is_kept",
    "vLLM drops a call whose header does not end in a colon and a number",
    "58",
    {"calls", "finish_reason"},
    lambda c: len(c.ours.calls) > len(c.vllm["tool_calls"]),
    families={"kimi_k2"},
)
def _no_index(c: Comparison) -> None:
    headers = c.output.text.split("<|tool_call_begin|>")[1:]
    for call in c.ours.calls:
        assert any(call.name in header.partition("<|tool_call_argument_begin|>")[0] for header in headers)
    _calls_are_the_models_own_text(c)


@rule(
    "arguments_follow_their_header",
    "without the marker before the arguments vLLM makes a call without any; we read what follows the header",
    "58; the text of a call does not vanish",
    {"calls", "content", "finish_reason"},
    lambda c: len(c.vllm["tool_calls"]) == len(c.ours.calls),
    families={"kimi_k2"},
)
def _header_arguments(c: Comparison) -> None:
    for theirs, mine in zip(c.vllm["tool_calls"], c.ours.calls, strict=True):
        name = theirs["name"].rpartition("|>")[2].removeprefix("functions.")
        assert name == mine.name or name.startswith(mine.name + "{"), "a name has no markers and no arguments"
        same = same_json(parsed(theirs["arguments"]), parsed(mine.arguments))
        assert same or mine.arguments in c.output.text.partition(mine.name)[2]
    assert _in_order(c.ours.content, c.output.text)


@rule(
    "a_marker_token_ends_a_header",
    "vLLM reads a marker inside a header as a part of the name; the header ends there, is none, and is text",
    "58",
    {"calls", "content", "finish_reason"},
    lambda c: any("<|" in x["name"] for x in c.vllm["tool_calls"]),
    families={"kimi_k2"},
)
def _marker_ends_header(c: Comparison) -> None:
    theirs = [x["name"] for x in c.vllm["tool_calls"] if "<|" not in x["name"]]
    assert theirs == [call.name for call in c.ours.calls]
    for broken in (x["name"].partition("<|")[0] for x in c.vllm["tool_calls"] if "<|" in x["name"]):
        assert broken in c.ours.content, "its text is shown"


# --- Mistral's calls


@rule(
    "a_name_has_no_brackets",
    "vLLM takes everything before the arguments for the name, damaged or doubled markers and JSON included; "
    "a doubled marker opens one call, and a name with a bracket or quote is none: its text is the answer's",
    "58 (kind)",
    {"calls", "content", "finish_reason"},
    lambda c: any(set('["') & set(call["name"]) for call in c.vllm["tool_calls"]),
    families={"mistral"},
)
def _no_brackets(c: Comparison) -> None:
    theirs = [x["name"].rpartition("[TOOL_CALLS]")[2].strip() for x in c.vllm["tool_calls"]]
    broken = [name for name in theirs if set('["') & set(name)]
    assert [name for name in theirs if name not in broken] == [call.name for call in c.ours.calls]
    assert all(name in c.ours.content for name in broken), "its text is shown"


# --- Gemma's channel


@rule(
    "content_is_not_taken_back",
    "an end of the channel that was never opened makes reasoning of all text before it in vLLM's whole "
    "answers; that text has been sent as content",
    "43 (kind)",
    {"reasoning", "content"},
    lambda c: "<channel|>" in c.output.text and not c.ours.reasoning,
    families={"gemma4"},
)
def _unopened(c: Comparison) -> None:
    whole = (c.vllm["reasoning"] or "") + (c.vllm["content"] or "")
    assert "".join(c.ours.content.split()) == "".join(whole.split())


@rule(
    "the_name_of_a_channel_is_markup",
    "where the model opens its channel again, vLLM shows the channel's name as reasoning",
    "43 (kind)",
    {"reasoning"},
    lambda c: c.output.text.count("<|channel>") > 1,
    families={"gemma4"},
)
def _channel_name(c: Comparison) -> None:
    theirs = (c.vllm["reasoning"] or "").replace("thought\n", "").strip()
    assert theirs == c.ours.reasoning.replace("thought\n", "").strip()


@rule(
    "a_marker_is_not_made_of_pieces",
    "vLLM takes other markers out of the text first, and what is left around them may then spell one; the "
    "model did not write it",
    "44 (kind)",
    {"reasoning", "calls", "content", "finish_reason"},
    lambda c: bool(re.search(r"<\|[a-z_]*<\|?(tool_call|channel)\|?>", c.output.text)),
    families={"gemma4"},
)
def _pieces(c: Comparison) -> None:
    assert _in_order(c.ours.content, c.output.text)
    names = re.findall(r"call:\s*([^{(]*)", c.output.text)
    assert all(any(call.name in name for name in names) for call in c.ours.calls)


def _gemma_names(text: str) -> list[str]:
    calls = [
        call.partition("<tool_call|>")[0].partition("call:")[2] for call in text.split("<|tool_call>")[1:]
    ]
    return [name for call in calls if (name := re.split(r"[{(]", call)[0].strip())]


@rule(
    "a_call_ends_where_the_next_begins",
    "vLLM reads over the marker of the next call, and over a bracket left over before a key, and makes a "
    "name or key of them",
    "58 (kind), 50",
    {"calls"},
    lambda c: any("<|tool_call>" in x["name"] or '"}' in x["arguments"] for x in c.vllm["tool_calls"]),
    families={"gemma4"},
)
def _next_call(c: Comparison) -> None:
    assert [call.name for call in c.ours.calls] == _gemma_names(c.output.text)
    for call in c.ours.calls:
        assert all(key in c.output.text and not key.startswith("}") for key in parsed(call.arguments))


# --- Llama's objects


@rule(
    "one_bad_object_does_not_spoil_the_others",
    "vLLM returns the whole text as content when any brace in it opens no call; we keep the calls that are, "
    "give a bad or cut one as far as it came, and show the text before the first",
    "45, 54; llama3_json/second_call_truncated, prose_with_braces_after (judgement)",
    {"calls", "content", "finish_reason"},
    lambda c: not c.vllm["tool_calls"] and bool(c.ours.calls),
    families={"llama3_json"},
)
def _bad_object(c: Comparison) -> None:
    _text_before_objects(c)
    assert c.ours.calls[0].arguments in c.output.text


@rule(
    "text_before_an_object_is_kept",
    "with a call, vLLM's whole answers drop all text; a stream has sent what stands before the first call",
    "corpus policy 3; llama3_json/text_before_call",
    {"content"},
    lambda c: bool(c.ours.calls),
    families={"llama3_json"},
)
def _text_before_objects(c: Comparison) -> None:
    before = c.output.text.partition("{")[0].replace("<|python_tag|>", "")
    assert c.ours.content.replace("<|python_tag|>", "").rstrip() == before.rstrip()
    _calls_are_the_models_own_text(c)


# --- Python's calls


@rule(
    "a_bad_list_keeps_its_calls",
    "vLLM returns the whole text as content when the list of calls is cut, damaged or followed by text; we "
    "keep the calls as far as they came, and the text after them",
    "54, 56; llama4_pythonic/text_after_call; corpus policy 3",
    {"calls", "content", "finish_reason"},
    lambda c: not c.vllm["tool_calls"] and bool(c.ours.calls),
    families={"llama4_pythonic", "pythonic"},
)
def _bad_list(c: Comparison) -> None:
    assert _visible(c.output.text.replace("<|python_end|>", "")).endswith(_visible(c.ours.content))
    assert all(call.name in c.output.text for call in c.ours.calls)


@rule(
    "a_marker_token_ends_a_list",
    "vLLM takes the end marker out of the text wherever it stands and reads the list without it; a model "
    "cannot mean that token as text, so what it ends is no list, and is text",
    "58 (kind)",
    {"calls", "content", "finish_reason"},
    lambda c: c.output.text.count("<|python_end|>") > 1 and not c.ours.calls,
    families={"llama4_pythonic"},
)
def _marker_ends_list(c: Comparison) -> None:
    assert _visible(c.ours.content) == _visible(c.output.text.replace("<|python_end|>", ""))


# --- Harmony's messages

HARMONY_CALL = re.compile(
    r"(?:\A(?=\s*to=)|<\|start\|>(?=assistant|\s|<)|<\|channel\|>)(?:[^<]|<\|channel\|>|<\|constrain\|>)*?"
    r"to=(?:functions\.)?(?:to=functions\.)?([^\s<]+)(?:[^<]|<\|channel\|>|<\|constrain\|>)*?<\|message\|>"
)


@rule(
    "a_message_that_goes_wrong_does_not_spoil_the_others",
    "vLLM gives up a message, or the rest of the output, where a head is damaged or text stands outside of "
    "messages; we read every head that leads to a message, and what is outside is text of the answer",
    "39, 40",
    {"reasoning", "calls", "content", "finish_reason"},
    lambda c: c.output.intended is None,
    families={"openai_gptoss"},
)
def _harmony(c: Comparison) -> None:
    shown = c.ours.content.replace("\n", "")
    assert _in_order(shown, c.output.text)
    theirs = (c.vllm["reasoning"] or "").partition("<|start|>")[0].replace("<|message|>", "")
    assert theirs.strip() in c.ours.reasoning, "no reasoning is lost"
    if c.output.tools is None or c.output.tool_choice == "none":
        assert not c.ours.calls
        return
    assert [call.name for call in c.ours.calls] == HARMONY_CALL.findall(c.output.text)
    for call in c.ours.calls:
        assert call.arguments in c.output.text or call.arguments == "{}"


# --- XML-like calls, and engine families in general


def _think_marker_in_a_call(c: Comparison) -> bool:
    opener = next((m for m in c.output.writer.markers if "tool" in m.lower()), "")
    calls = c.output.text.partition(opener)[2] if opener else ""
    return any(marker in calls for marker in THINK_MARKERS)


@rule(
    "think_markers_inside_a_call_stay",
    "vLLM's reasoning pass acts on think markers inside calls too: it cuts the call there, or removes them "
    "from strings; we read calls as the model wrote them",
    "47",
    {"reasoning", "calls", "content", "finish_reason"},
    _think_marker_in_a_call,
    families={
        "glm47",
        "minimax_m2",
        "mistral",
        "deepseek_v4",
        "step3p5",
        "qwen3_coder",
        "nemotron_v3",
        "mimo",
        "gemma4",
        "seed_oss",
    },
)
def _think_in_call(c: Comparison) -> None:
    assert (c.vllm["reasoning"] or "").startswith(c.ours.reasoning)
    assert _in_order(c.ours.content, c.output.text)
    for call in c.ours.calls:
        assert _in_order(call.name, c.output.text)


QWEN_XML = {
    *("qwen3_coder", "qwen_coder_plain", "nemotron_v3", "granite_thinking", "step3p5", "mimo", "seed_oss"),
}
XML = QWEN_XML | {"glm47", "minimax_m2", "deepseek_v32", "deepseek_v4"}
SHOWS_TEXT_AFTER_CALLS = QWEN_XML | {"glm47", "minimax_m2", "mistral", "gemma4", "granite"}


@rule(
    "text_beside_calls_is_kept",
    "with a call, vLLM's whole answers strip the text before the first call and lose what follows it; a "
    "stream has sent leading white space before it knows of a call, so it stays, as does text after calls",
    "corpus policy 1 and 3; qwen3_coder/markup_in_code_block, glm47/text_after_call",
    {"content"},
    lambda c: bool(c.vllm["tool_calls"]) or bool(c.ours.calls),
    families=SHOWS_TEXT_AFTER_CALLS,
)
def _text_beside_calls(c: Comparison) -> None:
    if c.right is not None:
        assert c.ours.content == c.right.content
        return
    # Mistral's broken arrays and headers, and leads that are cut: how far they are a call is decided by the
    # same characters that decide it in our parser, so a second reading would be a copy. What holds for any
    # extent: the text before the calls is all there, and what is behind it stands there in order.
    assert c.output.family in ("mistral", "gemma4")
    before, shown = c.answer.strip(), c.ours.content.strip()
    assert shown.startswith(before)
    behind = c.output.text[c.output.text.find(before) + len(before) :]
    assert _in_order(shown[len(before) :], behind), "what is shown beside it stands behind it"
    if c.ours.calls:
        assert c.ours.content == c.ours.content.rstrip(), "trailing white space beside calls is not shown"


@rule(
    "a_tag_is_no_name",
    "vLLM makes a call of an opening tag that is cut or written twice, with the rest of it for a name",
    "58 (kind); 54",
    {"calls", "finish_reason"},
    lambda c: any(x["name"].lstrip().startswith("<") for x in c.vllm["tool_calls"]),
    families=QWEN_XML,
)
def _tag_is_no_name(c: Comparison) -> None:
    theirs = [x["name"].strip() for x in c.vllm["tool_calls"]]
    assert [name for name in theirs if not name.startswith("<")] == [call.name for call in c.ours.calls]


@rule(
    "parameters_end_with_their_structure",
    "vLLM ends a value at the first closing tag, loses a parameter without one, and takes a missing end of "
    "the call for more parameters; we end it only where the next parameter or the end of the call follows, "
    "close the last one with the call, and give a cut one as far as it came",
    "52, 54, 41; qwen3_coder/truncated_second_call, deepseek_v32/literal_close_in_value; corpus policy 3",
    {"calls", "finish_reason"},
    lambda c: bool(c.ours.calls) and c.right is not None,
    families=XML,
)
def _parameters(c: Comparison) -> None:
    assert c.right is not None
    assert c.ours.calls == c.right.calls, "names and argument texts, to the character"


@rule(
    "a_bad_element_does_not_spoil_the_list",
    "held to JSON by tool_choice required, vLLM loses all calls of a list that is damaged or cut; we keep "
    "those before the damage",
    "45, 54 (kind); corpus policy 3",
    {"calls", "content", "finish_reason"},
    lambda c: c.output.writer.json_choice and c.output.tool_choice == "required" and bool(c.ours.calls),
)
def _bad_element(c: Comparison) -> None:
    text = c.output.text
    sound, at = [], text.index("[{") + 1
    decoder = json.JSONDecoder()
    while True:
        try:
            element, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        sound.append((element["name"], element["parameters"]))
        at += len(text[at:]) - len(text[at:].lstrip(", "))
    calls = [(call.name, parsed(call.arguments)) for call in c.ours.calls]
    assert calls[: len(sound)] == sound
    assert len(calls) <= len(sound) + 1, "nothing is read behind the damage"
    assert all(not call.complete for call in c.ours.calls[len(sound) :])


# --- JSON objects between tags

TAGGED_JSON = {"hermes_qwen3": "<tool_call>", "qwq": "<tool_call>", "longcat": "<longcat_tool_call>"}


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
        own = call.arguments == "{}" or call.arguments in c.output.text
        assert own, "arguments are the model's own text"
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
