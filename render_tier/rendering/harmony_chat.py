"""gpt-oss: chats as messages of the harmony format, encoded by OpenAI's library.

A conversation is a system message (identity, date, effort, channels), a developer message (instructions and
tools, where there are any), and then one or more messages for each of the client's: reasoning on the channel
"analysis", calls and their results on "commentary", answers on "final". Reasoning from before the last
answer is left out, as the model was trained. Nothing that a client writes becomes a special token.

The library writes the frame: heads, channels, tools. It holds the interpreter lock, for a time that grows
with the square of a run of letters, blanks or signs, and breaks off at long ones; so what clients write is
left out for it (`BLANK`) and put in afterwards, in IDs of the model's own tokenizer, which are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, cast

from render_tier.model.engines import PANIC
from render_tier.model.files import ModelLoadError
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import invalid
from render_tier.rendering.constraints import KINDS, as_format, with_tool_choice
from render_tier.rendering.harmony_runs import check_names, check_tools
from render_tier.rendering.harmony_tags import in_final_message
from render_tier.rendering.native_chat import NativePrompt, OutputRules, Parsers, Tools, refuse_media
from render_tier.rendering.structural_tags import Json, tagged
from render_tier.rendering.token_ids import PromptIds

if TYPE_CHECKING:
    from openai_harmony import Message

NOT_INSTALLED = (
    "chats of gpt-oss are written by the package oss-harmony, which is not installed: "
    "pip install 'disagg-frontend[harmony]' ({error})"
)
INSTRUCTIONS = "# Instructions\n\n"
BLANK = "x"
"""Stands for a text; one token, and of one kind with nothing around it."""
SPECIAL = re.compile(r"<\|[a-z]")
EFFORTS = ("high", "medium", "low")
IGNORED = {
    "continue_final_message": "the final message is closed; this format cannot continue one",
    "truncate_prompt_tokens": "prompts of this format are not cut",
}
"""Fields that have no effect -> why."""


class HarmonyChat:
    """A `native_chat.NativeChat`. Thread-safe."""

    cuts_to_fit = False
    joins_parts = False
    message_tokens = 4  # <|start|>, a role, <|message|>, <|end|>

    def __init__(
        self,
        model: str,
        parsers: Parsers,
        encode: Callable[[str], list[int]],
        added_tokens: Iterable[str],
        *,
        start_date: str | None,
        today: Callable[[], date] = date.today,
    ) -> None:
        """``encode``: IDs of a text by the model's tokenizer, which reads ``added_tokens`` out of it.
        ``start_date``: the date that the model is told, instead of today's.

        Raises ModelLoadError when the library is not installed, or for tokens that gpt-oss has not.
        """
        try:
            import openai_harmony
        except ImportError as error:
            raise ModelLoadError(NOT_INSTALLED.format(error=error)) from error
        self._harmony = openai_harmony
        self._encoding = openai_harmony.load_harmony_encoding(
            openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS
        )
        self._model = model
        self._parsers = parsers
        self._encode = encode
        added = sorted(added_tokens, key=len, reverse=True)
        odd = [token for token in added if not SPECIAL.match(token)]
        if odd:
            raise ModelLoadError(f"the tokenizer has added tokens that gpt-oss has not: {odd[0]!r}")
        self._special = re.compile("|".join(map(re.escape, added)) or r"(?!)")
        (self._blank,) = self._encoding.encode(BLANK)
        self._start_date = start_date
        self._today = today
        marks = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>")
        self._start, self._channel, self._constrain, self._message, self._end = (
            self._encoding.encode(mark, allowed_special="all")[0] for mark in marks
        )

    def check(self, request: ChatCompletionRequest) -> None:
        effort = request.reasoning_effort
        if effort == "none":
            raise invalid("Harmony does not support reasoning_effort='none'", "reasoning_effort")
        if effort is not None and effort not in EFFORTS:
            raise invalid(
                f"reasoning_effort={effort!r} is not supported by Harmony. "
                f"Supported values are: {', '.join(EFFORTS)}.",
                "reasoning_effort",
            )
        refuse_media(request.messages, self._model)

    def prompt(self, request: ChatTemplateFields, kwargs: dict[str, Any], tools: Tools) -> NativePrompt:
        effort = request.reasoning_effort if isinstance(request, ChatCompletionRequest) else None
        if tools:
            check_tools(tools)
        try:
            messages = [*self._preamble(request.messages, tools, effort), *self._said(request.messages)]
            messages = _without_old_reasoning(messages)
            ids = self._filled(self._recipients_first(self._frame(messages)), messages)
        except (self._harmony.HarmonyError, ValueError, TypeError, AttributeError) as error:
            raise BadRequest(str(error)) from None
        warnings = [f"{name}: {why}" for name, why in IGNORED.items() if getattr(request, name, None)]
        return NativePrompt(ids, warnings)

    def rules(
        self, request: ChatCompletionRequest, constraint: Json | None, prompt_ids: PromptIds
    ) -> OutputRules:
        parsers = self._parsers
        if constraint is not None and (parsers.reasoning is not None or parsers.tools is not None):
            rest = {name: value for name, value in constraint.items() if name not in KINDS}
            constraint = {**rest, **tagged(in_final_message(as_format(constraint)))}
        constraint = with_tool_choice(request, constraint, parsers.tools, parsers.strict_level)
        ended = True if parsers.reasoning is not None or not request.include_reasoning else None
        return OutputRules(constraint, keeps_special_tokens=False, reasoning_ended=ended)

    def _frame(self, messages: list[Message]) -> list[int]:
        """The conversation with every text blank."""
        harmony = self._harmony
        try:
            ids: list[int] = self._encoding.render_conversation_for_completion(
                harmony.Conversation.from_messages(map(self._blanked, messages)),
                harmony.Role.ASSISTANT,
                config=harmony.RenderConversationConfig(auto_drop_analysis=False),
            )
        except BaseException as error:  # a fault of the extension's own is no `Exception`
            if isinstance(error, Exception) or type(error).__name__ != PANIC:
                raise
            raise BadRequest(f"The conversation cannot be written in the harmony format: {error}") from None
        return ids

    def _blanked(self, message: Message) -> Message:
        harmony = self._harmony
        blanks = [
            content.model_copy(update={"instructions": BLANK})
            if getattr(content, "instructions", None) is not None
            else harmony.TextContent(text=BLANK)
            if isinstance(content, harmony.TextContent)
            else content
            for content in message.content
        ]
        return message.model_copy(update={"content": blanks})

    def _filled(self, frame: list[int], messages: list[Message]) -> list[int]:
        """The frame with the messages' texts in place of the blanks."""
        filled: list[int] = []
        done = 0
        for message in messages:
            start = frame.index(self._message, done) + 1
            filled += frame[done:start]
            done = start
            first = message.content[0] if message.content else None
            instructions = getattr(first, "instructions", None)
            if instructions is not None:
                done = frame.index(self._end, start)
                before, _, after = self._encoding.decode(frame[start:done]).partition(INSTRUCTIONS + BLANK)
                filled += self._text_ids(before + INSTRUCTIONS + instructions + after)
                continue
            texts = [content.text for content in message.content if hasattr(content, "text")]
            done += len(texts)
            assert frame[start:done] == [self._blank] * len(texts)
            for text in texts:
                filled += self._text_ids(text)
        return filled + frame[done:]

    def _text_ids(self, text: str) -> list[int]:
        """IDs of a text with nothing special in it. What spells a special token is cut behind its ``<|``,
        where the tokenizer's own words end too."""
        ids: list[int] = []
        done = 0
        for found in self._special.finditer(text):
            cut = found.start() + len("<|")
            ids += self._encode(text[done:cut])
            done = cut
        return ids + self._encode(text[done:])

    def _preamble(self, messages: Sequence[Any], tools: Tools, effort: str | None) -> Iterator[Message]:
        harmony = self._harmony
        system = harmony.SystemContent.new().with_conversation_start_date(
            self._start_date or self._today().isoformat()
        )
        if effort is not None:
            system = system.with_reasoning_effort(harmony.ReasoningEffort(effort.capitalize()))
        yield harmony.Message.from_role_and_content(harmony.Role.SYSTEM, system)
        instructions = _text(messages[0].get("content")) if _begins_with_instructions(messages) else None
        if instructions or tools:
            yield self._developer(instructions, tools)

    def _developer(self, instructions: str | None, tools: Tools = None) -> Message:
        harmony = self._harmony
        content = harmony.DeveloperContent.new()
        if instructions is not None:
            content = content.with_instructions(instructions)
        if tools:
            functions = [tool["function"] for tool in tools]
            content = content.with_function_tools(
                [
                    harmony.ToolDescription.new(
                        name=function["name"],
                        description=function["description"] or "",
                        parameters=function["parameters"],
                    )
                    for function in functions
                ]
            )
        return harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content)

    def _said(self, messages: Sequence[dict[str, Any]]) -> Iterator[Message]:
        """The client's messages but for leading instructions."""
        rest = messages[1:] if _begins_with_instructions(messages) else messages
        called = {
            call.get("id"): call.get("function", {}).get("name")
            for message in rest
            for call in message.get("tool_calls") or ()
        }
        check_names(_written_names(rest, called))
        for message in rest:
            role = message["role"]
            if role == "assistant":
                yield from self._assistant(message)
            elif role == "tool":
                yield self._result(message, called)
            elif role in ("system", "developer"):
                instructions = _text(message.get("content"))
                if instructions is not None:
                    yield self._developer(instructions)
            else:
                author = self._harmony.Author(role=role)
                yield self._harmony.Message(author=author, content=self._parts(message))

    def _assistant(self, message: dict[str, Any]) -> Iterator[Message]:
        reasoning, calls = message.get("reasoning"), message.get("tool_calls")
        if not calls:
            if reasoning:
                yield self._spoken(reasoning, "analysis")
            parts = self._parts(message)
            if parts and parts[0].text:
                author = self._harmony.Author(role=self._harmony.Role.ASSISTANT)
                yield self._harmony.Message(author=author, content=parts, channel="final")
            return
        if content := _text(message.get("content")):
            yield self._spoken(content, "commentary")
        if reasoning:
            yield self._spoken(reasoning, "analysis")
        for call in calls:
            function = call.get("function", {})
            said = self._spoken(function.get("arguments") or "", "commentary")
            yield said.with_recipient(f"functions.{function.get('name', '')}").with_content_type("json")

    def _spoken(self, text: str, channel: str) -> Message:
        harmony = self._harmony
        return harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text).with_channel(channel)

    def _result(self, message: dict[str, Any], called: dict[Any, Any]) -> Message:
        harmony = self._harmony
        name = called.get(message.get("tool_call_id", ""), "")
        author = harmony.Author.new(harmony.Role.TOOL, f"functions.{name}")
        text = _text(message.get("content")) or ""
        result = harmony.Message.from_author_and_content(author, text)
        return result.with_channel("commentary").with_recipient("assistant")

    def _parts(self, message: dict[str, Any]) -> list[Any]:
        content = message.get("content") or ""
        texts = [content] if isinstance(content, str) else [_part_text(part) for part in content]
        return [self._harmony.TextContent(text=text) for text in texts]

    def _recipients_first(self, ids: list[int]) -> list[int]:
        """Heads of calls as the model itself writes them: ``assistant to=f<|channel|>commentary json``.

        The library puts the recipient behind the channel, which the model then repeats in both places.
        """
        encoding, changed, done, place = self._encoding, list[int](), 0, 0
        while True:
            try:
                start = ids.index(self._start, place)
                end = ids.index(self._message, start + 1)
            except ValueError:
                return ids if not changed else changed + ids[done:]
            place = start + 1
            head = ids[start + 1 : end]
            if self._channel not in head or self._constrain not in head:
                continue
            channel, constrain = head.index(self._channel), head.index(self._constrain)
            addressed = encoding.decode(head[channel + 1 : constrain])
            kind = encoding.decode(head[constrain + 1 :])
            name, to, recipient = addressed.removesuffix(" ").partition(" to=")
            if encoding.decode(head[:channel]) != "assistant" or not (name and to and recipient and kind):
                continue
            changed += ids[done : start + 1]
            changed += encoding.encode(f"assistant to={recipient}", disallowed_special=())
            changed += [self._channel, *encoding.encode(f"{name} {kind}", disallowed_special=())]
            done = place = end


def _written_names(messages: Sequence[dict[str, Any]], called: dict[Any, Any]) -> Iterator[str]:
    """Every name of a function, as often as it is written: at calls, and at their results."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield str(call.get("function", {}).get("name"))
        if message["role"] == "tool":
            yield str(called.get(message.get("tool_call_id", "")))


def _begins_with_instructions(messages: Sequence[dict[str, Any]]) -> bool:
    return bool(messages) and messages[0]["role"] in ("system", "developer")


def _without_old_reasoning(messages: list[Message]) -> list[Message]:
    last = max((place for place, said in enumerate(messages) if said.channel == "final"), default=-1)
    return [said for place, said in enumerate(messages) if place >= last or said.channel != "analysis"]


def _text(content: Any) -> str | None:
    """The text of a message without anything between its parts; None when it has no text."""
    if content is None or isinstance(content, str):
        return content
    texts = [text for part in content if (text := _part_text(part, None)) is not None]
    return "".join(texts) if texts else None


def _part_text(part: Any, default: str | None = "") -> str | None:
    if isinstance(part, str):
        return part
    return cast("str | None", part.get("text", default))
