"""Our parser behind the same interface as the vLLM runner: a case in, the message out, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Text
from render_tier.core.formats import PLAIN, prompt_reasoning, reasoning_format, tool_format
from render_tier.core.formats.bypassed import bypassed
from render_tier.core.formats.guided import answer_format
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.table import Region
from render_tier.core.tool_schema import ToolSchemas
from tests.families.tokenization import CorpusTokenizer, tokenizer_of


@dataclass
class ParsedCall:
    name: str
    arguments: str = ""
    complete: bool | None = None
    """None while the call has not ended."""


@dataclass
class ParsedMessage:
    reasoning: str = ""
    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    finish_reason: str = "stop"

    def add(self, event: Event) -> None:
        """Fold one event in, holding it to what every stream must keep."""
        match event:
            case Text(region=Region.REASONING, text=text):
                self.reasoning += text
            case Text(text=text):
                self.content += text
            case CallStart(index=index, name=name):
                assert index == len(self.calls), "call indexes count up"
                self.calls.append(ParsedCall(name))
            case CallArguments(index=index, text=text):
                assert index == len(self.calls) - 1, "arguments belong to the last call"
                assert self.calls[index].complete is None, "no arguments after the end of a call"
                self.calls[index].arguments += text
            case CallEnd(index=index, complete=complete):
                assert self.calls[index].complete is None, "a call ends once"
                self.calls[index].complete = complete


def parse_whole(case: dict[str, Any]) -> ParsedMessage:
    """The message of an output fed at once."""
    return parse_stream(case, [])


def parse_stream(case: dict[str, Any], chunking: Sequence[int] | int) -> ParsedMessage:
    """The message of an output fed in chunks: token counts (the last chunk takes the rest), or n a chunk."""
    tokenizer = tokenizer_of(case)
    ids = tokenizer.encode(case["output_text"])
    machine = machine_of(case, tokenizer)
    message = ParsedMessage()
    for chunk in chunks(ids, chunking):
        for event in machine.feed(chunk):
            message.add(event)
    for event in machine.finish():
        message.add(event)
    message.finish_reason = finish_reason(case, message)
    return message


def machine_of(case: dict[str, Any], tokenizer: CorpusTokenizer) -> Machine:
    """A machine as the derenderer would set it up for this case."""
    grammar = grammar_of_case(case, tokenizer)
    return Machine(grammar, options_of(case), prompt_of(case, tokenizer))


def prompt_of(case: dict[str, Any], tokenizer: CorpusTokenizer) -> bool | None:
    """Whether the prompt left reasoning open (False: closed, None: it says nothing)."""
    reasoning = grammar_of_case(case, tokenizer).reasoning
    if reasoning is None:
        return None
    ids = tokenizer.encode(case.get("prompt_tail") or "")
    prompt = prompt_reasoning(reasoning, ids, tokenizer.vocabulary)
    kwargs = case.get("chat_template_kwargs") or {}
    if prompt is None and any(kwargs.get(k) == v for k, v in reasoning.enabled_by.items()):
        return True
    if prompt is None and any(kwargs.get(k) == v for k, v in reasoning.disabled_by.items()):
        return False
    return prompt


def options_of(case: dict[str, Any]) -> MachineOptions:
    """What the case's request says about the reading of its output."""
    name = case["format"]["reasoning_parser"]
    kwargs = case.get("chat_template_kwargs") or {}
    repeated_by = reasoning_format(name).repeated_by if name else {}
    return MachineOptions(
        tools=ToolSchemas(case.get("tools")),
        repeat_reasoning=any(kwargs.get(k) == v for k, v in repeated_by.items()),
    )


def grammar_of_case(case: dict[str, Any], tokenizer: CorpusTokenizer) -> Grammar:
    """Without tools, or with tool_choice none, the calls are not wanted."""
    reasoning, tools = case["format"]["reasoning_parser"], case["format"]["tool_parser"]
    wanted = bool(case.get("tools")) and case.get("tool_choice") != "none"
    choice = case.get("tool_choice")
    function = choice["function"]["name"] if isinstance(choice, dict) else None
    return grammar_of(reasoning, tools, tokenizer, choice == "required", function, wanted)


@cache
def grammar_of(
    reasoning: str | None,
    tools: str | None,
    tokenizer: CorpusTokenizer,
    required: bool = False,
    function: str | None = None,
    wanted: bool = True,
) -> Grammar:
    """The grammar of two parser names and a forced tool_choice, for one tokenizer."""
    tool = PLAIN
    if tools:
        tool = tool_format(tools)
        tool = answer_format(tool, required=required, function=function) if wanted else bypassed(tool)
    return Grammar(
        reasoning_format(reasoning) if reasoning else None,
        tool,
        tokenizer.vocabulary,
    )


def chunks(ids: Sequence[int], chunking: Sequence[int] | int) -> Iterator[Sequence[int]]:
    if isinstance(chunking, int):
        size = chunking or max(1, len(ids))
        yield from (ids[at : at + size] for at in range(0, len(ids), size))
        return
    at = 0
    for size in chunking:
        yield ids[at : at + size]
        at += size
    yield ids[at:]


def finish_reason(case: dict[str, Any], message: ParsedMessage) -> str:
    """The corpus's rule: tool_calls when a call is returned with auto or required and the engine stopped."""
    engine: str = case.get("finish_reason") or "stop"
    called = bool(message.calls) and not isinstance(case.get("tool_choice"), dict)
    return "tool_calls" if called and engine == "stop" else engine
