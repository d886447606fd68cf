"""Derender sessions over a real WebSocket: answers, snapshots, bounds, back-pressure, moving away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from render_tier.derendering.session import Session
from render_tier.protocol.session import Frame
from render_tier.server.service import Service
from tests.support.render_app import QWEN3, load_service, settings_for
from tests.support.session_client import Connection, Tier, served

Launch = Callable[..., AbstractAsyncContextManager[Tier]]

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
REQUEST = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "logprobs": True}
TEXT = (
    "<think>\nHm — 𓂀.\n</think>\n\nSure.\n"
    + '<tool_call>\n{"name": "f", "arguments": {"x": "a 𓂀"}}\n</tool_call>'
)
PROMPT = [1, 2, 3]


@pytest.fixture
def launch(qwen3_dir: Path, qwen3_service: Service) -> Launch:
    def make(**values: Any) -> AbstractAsyncContextManager[Tier]:
        settings = settings_for(qwen3_dir, **QWEN3, **values)
        return served(settings, load_service(settings, qwen3_service.assets))

    return make


@pytest.fixture
async def tier(launch: Launch) -> AsyncIterator[Tier]:
    async with launch() as running:
        yield running


@pytest.fixture
def ids(qwen3_service: Service) -> list[int]:
    return list(qwen3_service.assets.tokenizer.ids(TEXT, add_special_tokens=False))


def opening(request_id: str = "chatcmpl-1", **more: Any) -> dict[str, Any]:
    return {
        "endpoint": "chat",
        "request_id": request_id,
        "created": 5,
        "request": REQUEST,
        "prompt_token_ids": PROMPT,
        **more,
    }


def chunk(token_ids: list[int], finish: str | None = None, **more: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token_id": i, "logprob": -0.5, "top_logprobs": []} for i in token_ids]}
    choice = {"index": 0, "token_ids": token_ids, "finish_reason": finish, "logprobs": logprobs}
    return {"choices": [choice], **more}


async def post(tier: Tier, state: Any, part: dict[str, Any], request_id: str = "chatcmpl-1") -> Any:
    body = {
        "stream": True,
        "generate_chunk": {"request_id": request_id, "created": 5, **part},
        "stream_state": state,
        "chat_request": REQUEST,
        "prompt_token_ids": PROMPT,
    }
    async with tier.http.post(tier.url + "/v1/chat/completions/derender", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def posted(tier: Tier, ids: list[int]) -> list[Any]:
    """What single calls answer, one token each."""
    state, answers = None, []
    for number, token in enumerate(ids):
        answer = await post(tier, state, chunk([token], "stop" if number == len(ids) - 1 else None))
        state = answer["stream_state"]
        answers.append(answer)
    return answers


async def test_a_session_answers_as_single_calls_do(tier: Tier, ids: list[int]) -> None:
    calls = await posted(tier, ids)
    async with tier.connect() as session:
        for number, token in enumerate(ids):
            frame: dict[str, Any] = {"stream": 7, "chunk": chunk([token])}
            if number == 0:
                frame["open"] = opening()
            if number == len(ids) - 1:
                frame |= {"chunk": chunk([token], "stop"), "close": True}
            [answer] = await session.ask(frame)
            assert answer["stream"] == 7
            assert answer["chunk"] == calls[number]["chunk"]
            assert answer["derender"] == calls[number]["derender"]
    assert tier.app.sessions.budget.streams == 0


async def test_snapshots_come_by_themselves_and_when_asked_for(launch: Launch, ids: list[int]) -> None:
    async with launch(session_snapshot_tokens=5) as tier, tier.connect() as session:
        calls = await posted(tier, ids[:12])
        states: dict[int, Any] = {}
        await session.say({"stream": 0, "open": opening()})
        assert await session.hear() == [{"stream": 0}]
        for number in range(11):
            [answer] = await session.ask({"stream": 0, "chunk": chunk([ids[number]])})
            if "stream_state" in answer:
                states[number] = answer["stream_state"]
        assert list(states) == [4, 9]
        [answer] = await session.ask({"stream": 0, "snapshot": True})
        assert set(answer) == {"stream", "stream_state"}
        states[10] = answer["stream_state"]
        # A session's snapshot is the state of single calls, byte for byte.
        assert all(state == calls[number]["stream_state"] for number, state in states.items())


async def test_a_stream_moves_between_sessions_and_calls(tier: Tier, ids: list[int]) -> None:
    calls = await posted(tier, ids)
    cut, again = len(ids) // 3, 2 * len(ids) // 3
    async with tier.connect() as session:
        await session.say({"stream": 1, "open": opening(), "chunk": chunk(ids[:cut]), "snapshot": True})
        state = (await session.hear())[0]["stream_state"]
    assert state == calls[cut - 1]["stream_state"]
    state = (await post(tier, state, chunk(ids[cut:again])))["stream_state"]
    async with tier.connect() as session:
        rest = {"stream": 9, "open": opening(stream_state=state), "chunk": chunk(ids[again:], "stop")}
        [answer] = await session.ask(rest)
    assert answer["chunk"]["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["derender"] == {**calls[-1]["derender"]}


async def test_many_streams_share_a_connection(tier: Tier, ids: list[int]) -> None:
    calls = await posted(tier, ids)
    numbers = range(20)
    async with tier.connect() as session:
        for place, token in enumerate(ids):
            last = place == len(ids) - 1
            frames = [{"stream": n, "chunk": chunk([token], "stop" if last else None)} for n in numbers]
            if place == 0:
                frames = [{**frame, "open": opening()} for frame in frames]
            answers = await session.ask(*frames)
            assert [answer["stream"] for answer in answers] == list(numbers)
            assert all(answer["chunk"] == calls[place]["chunk"] for answer in answers)
        assert tier.app.sessions.budget.streams == 20
    while tier.app.sessions.budget.streams:
        await asyncio.sleep(0.005)


async def test_a_context_need_not_be_sent_twice(tier: Tier, ids: list[int]) -> None:
    async with tier.connect() as session:
        [first] = await session.ask({"stream": 1, "open": opening(), "chunk": chunk(ids[:1])})
        bare = {key: value for key, value in opening().items() if key not in ("request", "prompt_token_ids")}
        bare["context"] = first["derender"]["context"]
        [second] = await session.ask({"stream": 2, "open": bare, "chunk": chunk(ids[:1])})
        assert second["chunk"] == first["chunk"]
        bare["context"] = "00" * 16
        [third] = await session.ask({"stream": 3, "open": bare, "chunk": chunk(ids[:1])})
        assert third["error"]["code"] == 409


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        ({"stream": 5, "chunk": chunk([1])}, 404, "not open"),
        ({"stream": 5, "snapshot": True}, 404, "not open"),
        ({"stream": 1, "open": opening()}, 400, "open already"),
        ({"stream": 1, "chunk": chunk([1 << 40])}, 400, "vocabulary"),
        ({"stream": 1, "chunk": chunk([1] * 50_000)}, 400, "max_model_len"),
        ({"stream": 1, "chunk": chunk([1], position=9)}, 400, "position 1, the chunk of 9"),
        ({"stream": 1, "chunk": {"choices": [{"index": 1, "token_ids": [1]}]}}, 400, "choice 0, not 1"),
        ({"stream": 1, "chunk": {"choices": [{"index": 0}, {"index": 1}]}}, 400, "at most one choice"),
        ({"stream": 5, "open": opening(model="other")}, 404, "does not exist"),
        ({"stream": 5, "open": opening(stream_state={"v": 1, "s": "AAAA"})}, 400, "damaged"),
        ({"stream": 5, "open": opening(request={"messages": 1})}, 400, "messages"),
    ],
)
async def test_what_is_wrong_with_one_stream_is_said_and_ends_that_stream_alone(
    tier: Tier, frame: dict[str, Any], code: int, reason: str
) -> None:
    async with tier.connect() as session:
        for number in (1, 2):
            await session.ask({"stream": number, "open": opening(), "chunk": chunk([1])})
        [answer] = await session.ask(frame)
        assert answer["error"]["code"] == code
        assert reason in answer["error"]["message"]
        [gone] = await session.ask({"stream": frame["stream"], "chunk": chunk([1])})
        assert gone["error"]["code"] == 404
        [other] = await session.ask({"stream": 2, "chunk": chunk([1])})
        assert "chunk" in other


@pytest.mark.parametrize(
    "message", ["", "{", "{}", "[1]", '[{"stream":-1}]', "[{}]", "[" * 100_000, '["\\ud800"]']
)
async def test_a_message_that_is_none_ends_the_session(tier: Tier, message: str) -> None:
    async with tier.connect() as session:
        await session.ask({"stream": 1, "open": opening()})
        await session.socket.send_str(message)
        assert await session.ended() == 1007
        assert session.closing is not None
        assert session.closing.startswith("1 validation error: {")
    assert tier.app.sessions.budget.streams == 0


async def test_a_message_that_is_too_long_ends_the_session(launch: Launch) -> None:
    async with launch(max_body_bytes=1024) as tier, tier.connect() as session:
        await session.socket.send_str("[" + " " * 2000 + "]")
        assert await session.ended() == 1009


async def test_bytes_are_answered_with_bytes(tier: Tier) -> None:
    async with tier.connect() as session:
        await session.socket.send_bytes(json.dumps([{"stream": 1, "open": opening()}]).encode())
        assert json.loads(await session.socket.receive_bytes(timeout=30)) == [{"stream": 1}]


async def handshake(tier: Tier, path: str = "/v1/derender/sessions", **headers: str) -> int:
    try:
        async with tier.http.ws_connect(tier.url + path, headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


async def test_handshakes(launch: Launch) -> None:
    async with launch(api_key=("good",), max_sessions=1) as tier:
        assert await handshake(tier) == 401
        assert await handshake(tier, authorization="Bearer bad") == 401
        assert await handshake(tier, "/v1/other", authorization="Bearer good") == 404
        async with tier.connect(headers={"authorization": "Bearer good"}):
            assert await handshake(tier, authorization="Bearer good") == 503
        while len(tier.app.sessions):
            await asyncio.sleep(0.005)
        assert await handshake(tier, authorization="Bearer good") == 101
    async with launch(max_sessions=0) as tier:
        assert await handshake(tier) == 404


async def test_streams_and_bytes_are_bounded_over_all_sessions(launch: Launch) -> None:
    async with launch(max_session_streams=3) as tier, tier.connect() as one, tier.connect() as two:
        for session, number in ((one, 1), (one, 2), (two, 1)):
            assert "error" not in (await session.ask({"stream": number, "open": opening()}))[0]
        [full] = await two.ask({"stream": 2, "open": opening()})
        assert full["error"]["code"] == 503
        await one.say({"stream": 2, "close": True})
        await one.ask({"stream": 1, "snapshot": True})
        assert "error" not in (await two.ask({"stream": 2, "open": opening()}))[0]
    async with launch(max_session_bytes=20_000) as tier, tier.connect() as session:
        answers = await session.ask(*({"stream": n, "open": opening()} for n in range(10)))
        held = sum("error" not in answer for answer in answers)
        assert 1 < held < 10
        assert tier.app.sessions.budget.bytes <= 20_000


async def test_ten_thousand_abandoned_streams_leave_nothing(launch: Launch) -> None:
    """Opened in sessions that are dropped without a word, and by single calls that never come back."""
    limits: dict[str, Any] = {"context_cache_entries": 50, "stream_cache_entries": 100, "max_sessions": 64}
    async with launch(**limits) as tier:
        for round_ in range(50):
            async with tier.connect() as session:
                frames = []
                for number in range(200):
                    request = {"messages": [{"role": "user", "content": f"{round_} {number}"}]}
                    frames.append(
                        {
                            "stream": number,
                            "open": opening(request=request),
                            "chunk": chunk([5]),
                            "snapshot": True,
                        }
                    )
                answers = await session.ask(*frames)
                assert not any("error" in answer for answer in answers)
                session.socket._response.close()  # type: ignore[attr-defined]
        derenderer = tier.app.runtime.service.derenderer  # type: ignore[union-attr]
        for number in range(300):
            await post(tier, None, chunk([5]), f"abandoned-{number}")
        while len(tier.app.sessions):
            await asyncio.sleep(0.005)
        assert tier.app.sessions.budget.streams == tier.app.sessions.budget.bytes == 0
        assert len(derenderer.contexts.cache) <= 50
        assert len(derenderer.cache) <= 100
        async with tier.http.get(tier.url + "/metrics") as response:
            shown = await response.text()
        assert "render_tier_session_streams 0.0" in shown
        assert "render_tier_stream_cache_entries 100.0" in shown
        assert "render_tier_contexts 50.0" in shown


async def test_without_a_thread_for_a_long_opening_that_stream_alone_is_refused(launch: Launch) -> None:
    async with launch(max_queue=0) as tier, tier.connect() as session:
        await session.ask({"stream": 1, "open": opening()})
        release = threading.Event()
        pool = tier.app.runtime.pools["derender"]
        busy = asyncio.create_task(pool.run(release.wait))
        while not pool.saturated:
            await asyncio.sleep(0.005)
        long = {"stream": 2, "open": opening(prompt_token_ids=[1] * 10_000), "chunk": chunk([5])}
        first, second = await session.ask(long, {"stream": 1, "chunk": chunk([5])})
        assert first["error"]["code"] == 503
        assert "chunk" in second
        release.set()
        await busy
        while pool.pending:
            await asyncio.sleep(0.005)
        [answer] = await session.ask(long)
        assert "chunk" in answer


async def test_a_message_of_too_many_frames_is_refused(launch: Launch) -> None:
    async with launch(max_session_frames=20, inline_body_bytes=1_000) as tier:
        for frame in ({"stream": 1}, {"stream": 1, "snapshot": True, "chunk": None}):
            async with tier.connect() as session:
                answers = await session.ask({"stream": 1, "open": opening()}, *[frame] * 19)
                assert "error" not in answers[-1]
                await session.say({"stream": 1}, *[frame] * 20)
                assert await session.ended() == 1007
                assert session.closing is not None
                assert "Expected `array` of length <= 20" in session.closing
        assert tier.app.sessions.budget.streams == 0


async def test_a_long_message_is_decoded_in_a_thread_if_one_is_free(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    decode = Session.frames

    def noted(session: Session, message: bytes | str) -> list[Frame]:
        threads.append(threading.current_thread())
        return decode(session, message)

    monkeypatch.setattr(Session, "frames", noted)
    long = [{"stream": 1, "snapshot": True}] * 50
    async with launch(max_queue=0, inline_body_bytes=1_000) as tier, tier.connect() as session:
        await session.ask({"stream": 1, "open": opening()})
        await session.ask(*long)
        pool, release = tier.app.runtime.pools["derender"], threading.Event()
        while pool.pending:
            await asyncio.sleep(0.005)
        busy = asyncio.create_task(pool.run(release.wait))
        while not pool.saturated:
            await asyncio.sleep(0.005)
        assert len(await session.ask(*long)) == len(long)
        release.set()
        await busy
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, False, True]


async def test_a_stream_that_rests_too_long_is_forgotten(launch: Launch) -> None:
    async with launch(session_idle_seconds=0.3) as tier, tier.connect() as session:
        await session.ask({"stream": 1, "open": opening()}, {"stream": 2, "open": opening()})
        for _ in range(5):
            await asyncio.sleep(0.1)
            [answer] = await session.ask({"stream": 2, "chunk": chunk([1])})
            assert "error" not in answer
        [answer] = await session.ask({"stream": 1, "chunk": chunk([1])})
        assert answer["error"]["code"] == 404
        # And so is a session.
        assert await session.ended() == 1001
        assert session.closing == "no message for 0.3 seconds"


async def test_who_does_not_read_is_not_read(launch: Launch) -> None:
    """A client that only sends is held up after a bounded amount, and others are served meanwhile."""
    async with launch(session_idle_seconds=2.0) as tier, tier.connect() as greedy, tier.connect() as other:
        await greedy.ask({"stream": 1, "open": opening()})
        # The client's library reads ahead, so its transport is stopped.
        transport = greedy.socket._response.connection.transport  # type: ignore[union-attr]
        transport.pause_reading()
        message = json.dumps([{"stream": 1, "snapshot": True}] * 300)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await greedy.socket.send_str(message)
                sent += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while before != sent:
            before = sent
            for number in range(20):
                [answer] = await other.ask({"stream": number, "open": opening(), "close": True})
                assert "error" not in answer
                await asyncio.sleep(0.02)
        assert len(tier.app.sessions) <= 2
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        transport.abort()


async def test_before_it_stops_a_server_says_so_and_lets_streams_move(launch: Launch, ids: list[int]) -> None:
    async with launch(session_drain_seconds=20.0) as tier, tier.connect() as session:
        await session.ask({"stream": 1, "open": opening(), "chunk": chunk(ids[:4])})
        tier.server.should_exit = True
        assert await session.hear() == [{"moving": True}]
        [refused] = await session.ask({"stream": 2, "open": opening()})
        assert refused["error"]["code"] == 503
        [answer] = await session.ask({"stream": 1, "chunk": chunk(ids[4:6]), "snapshot": True})
        assert answer["stream_state"]
        await session.say({"stream": 1, "close": True})
        assert await session.ended() in (1001, 1012)


async def test_a_server_does_not_wait_for_ever(launch: Launch) -> None:
    async with launch(session_drain_seconds=0.1) as tier, tier.connect() as session:
        await session.ask({"stream": 1, "open": opening()})
        tier.server.should_exit = True
        assert await session.hear() == [{"moving": True}]
        assert await session.ended() in (1001, 1012)


async def talk(session: Connection, number: int, ids: list[int]) -> str:
    content = ""
    for place, token in enumerate(ids):
        frame = {"stream": number, "chunk": chunk([token])} | ({"open": opening()} if not place else {})
        [answer] = await session.ask(frame)
        content += answer["chunk"]["choices"][0]["delta"]["reasoning"] or ""
    return content


async def test_long_messages_are_worked_on_beside_the_loop(launch: Launch, ids: list[int]) -> None:
    async with launch(session_inline_tokens=0) as tier, tier.connect() as one, tier.connect() as two:
        texts = await asyncio.gather(talk(one, 1, ids[:8]), talk(two, 1, ids[:8]))
        assert texts[0] == texts[1] != ""
