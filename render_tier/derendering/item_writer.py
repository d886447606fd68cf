"""Parser events to the events that build the items of a Responses answer, one after the other.

Items come in the order in which the model wrote them: reasoning, messages and calls. Their ids are derived
from the request and the item's place, so a repeated call gives the same ones on any replica.

What is said about an item at its end is kept while it is open; its text is not (`protocol.response_stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import UNSET

from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Text
from render_tier.core.table import Region
from render_tier.derendering.chat import call_id, shown_call
from render_tier.derendering.context import Context
from render_tier.derendering.custom_input import CustomInput
from render_tier.derendering.response_facts import ResponseFacts
from render_tier.protocol.derender import Count
from render_tier.protocol.response_answers import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    CustomCallItem,
    Failed,
    FunctionCallItem,
    Incomplete,
    InProgress,
    InputDelta,
    InputDone,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputText,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from render_tier.protocol.responses import LogprobOut

CALL_PREFIX: Final = "call_"
IN_PROGRESS: Final = "in_progress"
MOST_WAITING: Final = 256
"""Tokens without text before a message begins whose logprobs are kept for it."""
ENDS: Final[Mapping[str, type[Completed | Incomplete | Failed]]] = {
    "completed": Completed,
    "incomplete": Incomplete,
    "cancelled": Incomplete,
    "failed": Failed,
}
"""Status of a response -> its last event."""


class Kind(IntEnum):
    NONE = 0
    MESSAGE = 1
    REASONING = 2
    CALL = 3
    CUSTOM = 4


PREFIXES: Final = {Kind.MESSAGE: "msg", Kind.REASONING: "rs", Kind.CALL: "fc", Kind.CUSTOM: "ctc"}


class ResponseProgress(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a stream stands: all of it, for a state. ``events`` are out and ``items`` have begun; the last of
    them is open if ``open`` is not `Kind.NONE`. ``name`` and ``call_id`` are of the open call,
    ``custom`` what `CustomInput` goes on from; ``waiting``: logprobs of tokens whose text is held back."""

    events: Count = 0
    items: Count = 0
    open: Kind = Kind.NONE
    name: str = ""
    call_id: str = ""
    custom: bytes = b""
    waiting: list[LogprobOut] = []


class ItemWriter:
    """The events of one piece of output, appended to ``events``; ``progress`` is advanced."""

    def __init__(self, progress: ResponseProgress, context: Context, request_id: str) -> None:
        assert isinstance(context.answer, ResponseFacts)
        self._events: list[ResponseEvent] = []
        self._more: list[str] = []
        """Text that goes on the last event's, in the pieces in which it came."""
        self._progress = progress
        self._context = context
        self._facts = context.answer
        self._request_id = request_id
        self._target: TextDelta | None = None
        """The text that the tokens of this piece were read with."""

    @property
    def events(self) -> list[ResponseEvent]:
        """Whatever is appended here ends the delta that is the last of them."""
        if self._more:
            last = self._events[-1]
            assert isinstance(last, TextDelta | ReasoningDelta | ArgumentsDelta | InputDelta)
            last.delta += "".join(self._more)
            self._more = []
        return self._events

    def begin(self, response: Response) -> None:
        self.events.extend((Created(self._number(), response), InProgress(self._number(), response)))

    def write(self, events: Iterable[Event], logprobs: Iterable[LogprobOut]) -> None:
        """``logprobs``: those of tokens that have become known to be content. A token whose text is held back
        waits for the message that it is in; if there comes none, nobody is told of it."""
        self._target = None
        for event in events:
            if type(event) is Text:
                if event.region is Region.CONTENT:
                    self._text(event.text)
                elif not self._context.hides_reasoning:
                    self._reasoning(event.text)
            elif type(event) is CallArguments:
                if shown_call(self._context, event.index):
                    self._arguments(event.text)
            elif type(event) is CallStart:
                if shown_call(self._context, event.index):
                    self._call(event)
            elif type(event) is CallEnd and shown_call(self._context, event.index):
                self._close("completed" if event.complete else "incomplete")
        shown = [self._shown(entry) for entry in logprobs]
        if self._target is not None:
            self._target.logprobs += shown
            return
        self._progress.waiting += shown
        if self._progress.open is Kind.MESSAGE and self._progress.waiting:
            place = self._place()
            self.events.append(TextDelta(self._number(), *place, 0, "", self._waited()))
        del self._progress.waiting[:-MOST_WAITING]

    def end(self, response: Response) -> None:
        """Close what is open, and the response."""
        whole = response.status == "completed"
        self._close("completed" if whole else "incomplete")
        number = self._number()
        self.events.append(ENDS[response.status](number, response))

    def _shown(self, entry: LogprobOut) -> LogprobOut:
        """With as many alternatives as were asked for, the sampled token among them."""
        entry.top_logprobs = entry.top_logprobs[: self._facts.top_logprobs]
        entry.bytes = entry.bytes or []
        for alternative in entry.top_logprobs:
            alternative.bytes = alternative.bytes or []
        return entry

    def _text(self, text: str) -> None:
        if self._progress.open is not Kind.MESSAGE:
            identifier = self._begin(Kind.MESSAGE)
            self._added(MessageItem(identifier, IN_PROGRESS, []))
            self._part_added(OutputText(""))
        last = self._events[-1] if self._events else None
        if type(last) is TextDelta:
            self._more.append(text)
            last.logprobs += self._waited()
            self._target = last
            return
        place = self._place()
        self._target = TextDelta(self._number(), *place, 0, text, self._waited())
        self.events.append(self._target)

    def _waited(self) -> list[LogprobOut]:
        waiting, self._progress.waiting = self._progress.waiting, []
        return waiting

    def _reasoning(self, text: str) -> None:
        if self._progress.open is not Kind.REASONING:
            identifier = self._begin(Kind.REASONING)
            self._added(ReasoningItem(identifier, IN_PROGRESS, []))
            self._part_added(ReasoningText(""))
        last = self._events[-1] if self._events else None
        if type(last) is ReasoningDelta:
            self._more.append(text)
            return
        place = self._place()
        self.events.append(ReasoningDelta(self._number(), *place, 0, text))

    def _call(self, event: CallStart) -> None:
        custom = event.name in self._facts.custom
        self._begin(Kind.CUSTOM if custom else Kind.CALL)
        progress = self._progress
        progress.name = event.name
        progress.call_id = call_id(
            self._request_id, self._context, 0, event.index, event.written_id, prefix=CALL_PREFIX
        )
        progress.custom = b""
        self._added(self._item(IN_PROGRESS, ""))

    def _arguments(self, text: str) -> None:
        progress = self._progress
        if progress.open is Kind.CUSTOM:
            reader = CustomInput.load(progress.custom)
            text = reader.feed(text)
            progress.custom = reader.dump()
        if not text or progress.open not in (Kind.CALL, Kind.CUSTOM):
            return
        last = self._events[-1] if self._events else None
        if type(last) is ArgumentsDelta or type(last) is InputDelta:
            self._more.append(text)
            return
        delta = InputDelta if progress.open is Kind.CUSTOM else ArgumentsDelta
        place = self._place()
        self.events.append(delta(self._number(), *place, text))

    def _close(self, status: str) -> None:
        """Text is null: see `protocol.response_stream`."""
        progress = self._progress
        kind = progress.open
        if kind is Kind.NONE:
            return
        if kind is Kind.CUSTOM and (rest := CustomInput.load(progress.custom).finish()):
            place = self._place()
            self.events.append(InputDelta(self._number(), *place, rest))
        place = self._place()
        if kind is Kind.MESSAGE and progress.waiting:
            self.events.append(TextDelta(self._number(), *place, 0, "", self._waited()))
        number = self._number()
        if kind is Kind.MESSAGE:
            self.events.append(TextDone(number, *place, 0))
            self.events.append(PartDone(self._number(), *place, 0, OutputText(None)))
        elif kind is Kind.REASONING:
            self.events.append(ReasoningDone(number, *place, 0))
            self.events.append(PartDone(self._number(), *place, 0, ReasoningText(None)))
        elif kind is Kind.CUSTOM:
            self.events.append(InputDone(number, *place))
        else:
            self.events.append(ArgumentsDone(number, *place, self._names()[0]))
        self.events.append(ItemDone(self._number(), place[0], self._item(status, None)))
        progress.open = Kind.NONE
        progress.name = progress.call_id = ""
        progress.custom = b""

    def _item(self, status: str, text: str | None) -> Item:
        """The open item. ``text`` None: at its end."""
        progress = self._progress
        identifier = self._place()[1]
        if progress.open is Kind.MESSAGE:
            return MessageItem(identifier, status, [OutputText(text)])
        if progress.open is Kind.REASONING:
            return ReasoningItem(identifier, status, [ReasoningText(text)])
        if progress.open is Kind.CUSTOM:
            return CustomCallItem(identifier, progress.call_id, progress.name, text)
        name, namespace = self._names()
        return FunctionCallItem(
            identifier, status, progress.call_id, name, text, UNSET if namespace is None else namespace
        )

    def _names(self) -> tuple[str, str | None]:
        name = self._progress.name
        return self._facts.namespaced.get(name, (name, None))

    def _begin(self, kind: Kind) -> str:
        self._close("completed")
        if kind is not Kind.MESSAGE:
            self._progress.waiting = []
        self._progress.open = kind
        self._progress.items += 1
        return self._place()[1]

    def _added(self, item: Item) -> None:
        self.events.append(ItemAdded(self._number(), self._progress.items - 1, item))

    def _part_added(self, part: OutputText | ReasoningText) -> None:
        place = self._place()
        self.events.append(PartAdded(self._number(), *place, 0, part))

    def _place(self) -> tuple[int, str]:
        """(index, id) of the open item."""
        progress = self._progress
        index = progress.items - 1
        derived = self._context.derived_id(self._request_id, f"/item/{index}")
        return index, f"{PREFIXES[progress.open]}_{derived}"

    def _number(self) -> int:
        number = self._progress.events
        self._progress.events += 1
        return number
