"""Bodies of calls on their own: bounds of what they hold, and states that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from render_tier.core.bare_call import BareCallFormat
from render_tier.core.body import Body, BodyFormat, Status
from render_tier.core.choice import ChoiceFormat
from render_tier.core.gap import GapFormat
from render_tier.core.harmony_message import HarmonyMessageFormat
from render_tier.core.header_call import HeaderCallFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.python_calls import PythonCallsFormat
from render_tier.core.tool_schema import NO_TOOLS, ToolSchemas

CALL = JsonCallFormat(name_key="name", arguments_keys=("arguments",))
FORMATS: dict[str, tuple[BodyFormat, str]] = {
    "header": (HeaderCallFormat(separator=":", ends=("</end>",)), 'name:{"a": [1'),
    "header without json": (HeaderCallFormat(separator=":", ends=("</end>",)), "name:a </e"),
    "harmony": (HarmonyMessageFormat(separator=r"<\|message\|>"), "<|channel|>comm"),
    "array": (JsonCallsFormat(CALL), '[{"name": "a", "arguments": {"x": '),
    "array, other element": (JsonCallsFormat(CALL), '[{"name": "a", "arguments": {}}, {"x": ['),
    "choice": (ChoiceFormat(starts="[", body=JsonCallsFormat(CALL)), ' [{"na'),
    "python": (PythonCallsFormat(), "[a(x='b"),
    "bare": (BareCallFormat(separator=r"(?=\S)", function="f"), '  {"a'),
}
HELD: dict[str, tuple[BodyFormat, str, str]] = {
    "header": (HeaderCallFormat(separator=":"), "", "x"),
    "array": (JsonCallsFormat(CALL), "[", " "),
    "element": (JsonCallsFormat(CALL), '[{"name": "', "x"),
    "choice": (ChoiceFormat(starts="[", body=JsonCallsFormat(CALL)), "", " "),
    "python": (PythonCallsFormat(), "[", "\n"),
    "harmony": (HarmonyMessageFormat(separator=r"<\|message\|>"), "<|channel|>", "x"),
}


@dataclass
class Log:
    """Records what a body reports."""

    events: list[Any] = field(default_factory=list)

    @property
    def tools(self) -> ToolSchemas:
        return NO_TOOLS

    def call_start(self, name: str, written_id: str = "") -> None:
        self.events.append(name)

    def call_arguments(self, text: str) -> None:
        self.events.append(text)

    def call_end(self, complete: bool) -> None:
        self.events.append(complete)


def fed(fmt: BodyFormat, text: str, hold_limit: int = 65536) -> tuple[Body, Log]:
    body, log = fmt.open("", hold_limit), Log()
    for character in text:
        if body.status is not Status.RUNNING:
            break
        assert body.feed(character, 0, log) in (0, 1)
    return body, log


@pytest.mark.parametrize("name", HELD)
def test_what_is_held_is_bounded(name: str) -> None:
    fmt, start, more = HELD[name]
    body, log = fed(fmt, start + more * 3000, hold_limit=2000)
    assert (body.status, log.events) == (Status.FAILED, [])
    assert len(body.raw) <= 2002


@pytest.mark.parametrize("name", FORMATS)
def test_state_is_plain_and_its_reader_accepts_nothing_impossible(name: str) -> None:
    fmt, text = FORMATS[name]
    body, _ = fed(fmt, text)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(body.dump()))
    assert fmt.load(state, 65536).dump() == body.dump()
    for at in range(len(state)):
        for wrong in (-3, 77, "long" * 20_000, None, [1], True):
            damaged = [*state[:at], wrong, *state[at + 1 :]]
            try:
                again = fmt.load(damaged, 65536)
            except (ValueError, msgspec.ValidationError):
                continue
            again.feed(' x"}])', 0, Log())
            if again.status is Status.RUNNING:
                again.finish(Log())


@pytest.mark.parametrize("name", FORMATS)
def test_the_end_of_the_output_ends_every_body(name: str) -> None:
    fmt, text = FORMATS[name]
    body, log = fed(fmt, text)
    committed = body.committed
    body.finish(log)
    assert body.status is (Status.DONE if committed else Status.FAILED)
    assert not committed or log.events[-1] in (True, False)


def test_a_gap_gives_nothing_back() -> None:
    body, _ = fed(GapFormat("\n"), "\n\nx")
    assert (body.status, body.raw) == (Status.DONE, "")
    with pytest.raises(ValueError, match="no state"):
        GapFormat("\n").load("x", 10)


def test_named_arguments_need_no_object() -> None:
    fmt = BareCallFormat(separator=r"(?=\S)", function="f")
    body, log = fed(fmt, "\n {} ")
    assert (body.status, log.events) == (Status.DONE, ["f", "{", "}", True])
