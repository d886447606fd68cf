"""Sessions without a connection: messages in parts, and closing while a message is worked on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.derendering import Derenderer
from render_tier.derendering.session import Budget, Session, encoded, parts
from render_tier.protocol.session import Frame, SessionChunk, StreamOpen
from tests.render_tier.derendering.conftest import Client


def frame(tokens: int | None, opened: int | None) -> Frame:
    choices = [] if tokens is None else [{"index": 0, "token_ids": [1] * tokens}]
    start = None
    if opened is not None:
        request = msgspec.Raw(b"1" * opened)
        start = StreamOpen(endpoint="chat", request_id="r", request=request)
    chunk = None if tokens is None else msgspec.convert({"choices": choices}, SessionChunk)
    return Frame(stream=1, open=start, chunk=chunk)


sizes = st.none() | st.integers(0, 100)


@given(st.lists(st.builds(frame, sizes, st.none() | st.integers(0, 20_000)), max_size=30), st.integers(0, 64))
def test_parts_hold_every_frame_in_order_and_are_no_longer_than_asked(frames: list[Frame], most: int) -> None:
    divided = list(parts(frames, most))
    joined = [one for part, _weight in divided for one in part]
    assert [id(one) for one in joined] == [id(one) for one in frames]
    assert all(weight <= most or len(part) == 1 for part, weight in divided)
    assert all(weight > 0 for _part, weight in divided)


def session(derenderer: Derenderer, budget: Budget) -> Session:
    return Session(
        derenderer, budget, max_frames=4096, snapshot_tokens=64, idle_seconds=60.0, clock=lambda: 0.0
    )


def opening(number: int) -> dict[str, Any]:
    request = {"messages": [{"role": "user", "content": "hi"}]}
    start = {"endpoint": "chat", "request_id": f"r{number}", "request": request, "prompt_token_ids": [1]}
    return {"stream": number, "open": start, "chunk": {"choices": [{"index": 0, "token_ids": [5]}]}}


@pytest.mark.parametrize("most", [0, 1, 20, 10**6])
def test_the_answer_to_a_message_does_not_depend_on_its_parts(
    client: Callable[..., Client], most: int
) -> None:
    message = json.dumps([opening(number % 7) for number in range(12)]).encode()
    whole = session(client().derenderer, Budget(100, 1 << 20))
    divided = session(client().derenderer, Budget(100, 1 << 20))
    answers = [
        answer
        for part, _weight in parts(divided.frames(message), most)
        for answer in divided.answers(part)
    ]  # fmt: skip
    assert without_time(encoded(answers)) == without_time(whole.receive(message))


def without_time(message: bytes) -> Any:
    answers = json.loads(message)
    for answer in answers:
        answer.get("chunk", {}).pop("created", None)
    return answers


def test_what_is_opened_while_the_session_closes_is_let_go_of(client: Callable[..., Client]) -> None:
    budget = Budget(100, 1 << 20)
    live = session(client().derenderer, budget)
    live.receive(json.dumps([opening(1)]).encode())
    frames = live.frames(json.dumps([opening(2), opening(3)]).encode())
    assert budget.streams == 1
    live.close()
    live.answers(frames)
    assert (len(live), budget.streams, budget.bytes) == (0, 0, 0)
