"""The other side of a Responses stream: whole events out of those that derender gives.

Events that close something repeat its whole text, and the last event the whole output. Derender keeps none of
it, so that its state stays small; who hands the events on has seen every delta, and puts in what is null:

- the text of an item is the ``delta`` of all its events, and its logprobs theirs;
- the output of the response is the ``item`` of every ``response.output_item.done``.

Events are numbered here too: a stream that was read again after a loss, in larger chunks, has fewer deltas.

Holds the output so far, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

LIFECYCLE_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
TEXT_FIELDS: Final[Mapping[str, str]] = {
    "response.output_text.done": "text",
    "response.reasoning_text.done": "text",
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
}
ITEM_TEXT_FIELDS: Final[Mapping[str, str]] = {"function_call": "arguments", "custom_tool_call": "input"}
"""Type of item -> its text; the other types have it in their one part."""


class _Head(msgspec.Struct):
    type: str
    sequence_number: int = 0
    delta: str | None = None
    logprobs: list[Raw] | None = None


_head = msgspec.json.Decoder(_Head)
_object = msgspec.json.Decoder(dict[str, Raw])


class ResponseStream:
    """One stream. ``output``: its items so far. ``ended``: its last event has been seen."""

    def __init__(self) -> None:
        self.ended = False
        self.output: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._logprobs: list[Raw] = []
        self._begun: Raw | None = None
        self._sequence = 0

    def add(self, event: Raw | bytes, more: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """The event's name and its JSON, complete. ``more``: for the last event, fields of the response that
        take the place of derender's. Raises msgspec.DecodeError for what is no event of derender's."""
        head = _head.decode(event)
        number, self._sequence = self._sequence, self._sequence + 1
        if head.delta is not None:
            self._texts.append(head.delta)
            if head.logprobs:
                # They stand in a buffer that is not theirs.
                self._logprobs += [Raw(bytes(entry)) for entry in head.logprobs]
        elif head.type == "response.created":
            self._begun = Raw(bytes(event))
        closes = head.type.endswith(".done") or head.type in LIFECYCLE_ENDS
        if not closes and head.sequence_number == number:
            return head.type, bytes(event)
        fields: dict[str, Any] = dict(_object.decode(event))
        fields["sequence_number"] = number
        try:
            if closes:
                self._fill(head.type, fields, more or {})
        except (KeyError, IndexError, TypeError) as error:
            raise msgspec.DecodeError(f"not an event of a response: {error!r}") from error
        return head.type, msgspec.json.encode(fields)

    def failed(self, error: Mapping[str, Any]) -> Iterable[tuple[str, bytes]]:
        """The end of a stream that cannot go on. ``error`` is what an error answer's body has as such. The
        second event is the one that OpenAI's clients raise on."""
        events: list[tuple[str, dict[str, Any]]] = []
        if self._begun is not None:
            response = _object.decode(_object.decode(self._begun)["response"])
            told = {"code": "server_error", "message": error["message"]}
            end = {"status": "failed", "error": told, "output": self.output}
            events.append(("response.failed", {"response": {**response, **end}}))
        told = {name: error.get(name) for name in ("message", "param")}
        events.append(("error", {"code": error.get("type"), **told, "error": dict(error)}))
        self.ended = True
        for kind, fields in events:
            event = {"type": kind, "sequence_number": self._sequence, **fields}
            self._sequence += 1
            yield kind, msgspec.json.encode(event)

    def _fill(self, kind: str, event: dict[str, Any], more: Mapping[str, Any]) -> None:
        if kind in LIFECYCLE_ENDS:
            # What the response repeats of the request stays as it is, however deep.
            response = _object.decode(event["response"])
            event["response"] = {**response, "output": self.output, **more}
            self.ended = True
            return
        text = "".join(self._texts)
        if kind in TEXT_FIELDS:
            event[TEXT_FIELDS[kind]] = text
            self._fill_logprobs(event)
        elif kind == "response.content_part.done":
            part = event["part"] = msgspec.json.decode(event["part"])
            part["text"] = text
            self._fill_logprobs(part)
        elif kind == "response.output_item.done":
            item = event["item"] = msgspec.json.decode(event["item"])
            if item["type"] in ITEM_TEXT_FIELDS:
                item[ITEM_TEXT_FIELDS[item["type"]]] = text
            else:
                item["content"][0]["text"] = text
                self._fill_logprobs(item["content"][0])
            self.output.append(item)
            self._texts, self._logprobs = [], []

    def _fill_logprobs(self, holder: dict[str, Any]) -> None:
        if "logprobs" in holder:
            holder["logprobs"] = self._logprobs
