"""Both clients against a server in the test's own process: records, errors, retries and batches."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from render_tier.client import (
    AsyncClient,
    Client,
    ClientError,
    Refused,
    Retries,
    Rollout,
    Unreachable,
    Unreadable,
)

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
AT_ONCE = Retries(attempts=3, pause=0.0)
Reply = tuple[int, Any] | Exception


def answer(*outputs: list[int], **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "prompt_token_ids": [1, 2],
        "choices": [
            {"index": i, "message": {"role": "assistant", "content": "x"}, "token_ids": ids, **choice}
            for i, ids in enumerate(outputs)
        ],
    }


class Server:
    """Answers with what it is told, in turn, and the last of it from then on."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.calls.append((request.url.path, json.loads(request.content)))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        status, body = reply
        return httpx.Response(status, json=body, headers={"X-Render-Fingerprint": "f1", "Retry-After": "0"})


Ask = Callable[..., Any]


@pytest.fixture(params=["blocking", "asynchronous"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """``ask(server, method, *arguments)``: one call of either client."""

    def blocking(server: Server, method: str, *arguments: Any, **fields: Any) -> Any:
        with Client("http://o", transport=httpx.MockTransport(server), retries=AT_ONCE) as client:
            result = getattr(client, method)(*arguments, **fields)
            return list(result) if method == "rollouts" else result

    def asynchronous(server: Server, method: str, *arguments: Any, **fields: Any) -> Any:
        async def run() -> Any:
            transport = httpx.MockTransport(server)
            async with AsyncClient("http://o", transport=transport, retries=AT_ONCE) as client:
                if method == "rollouts":
                    return [rollout async for rollout in client.rollouts(*arguments, **fields)]
                return await getattr(client, method)(*arguments, **fields)

        return asyncio.run(run())

    return blocking if request.param == "blocking" else asynchronous


class TestRecords:
    def test_a_chat(self, ask: Ask) -> None:
        logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]}
        server = Server((200, answer([3, 4], [5], finish_reason="stop", logprobs=logprobs)))
        chat = ask(server, "chat", {**CHAT, "stream": True})
        first, second = chat.samples
        assert (first.prompt_token_ids, first.output_token_ids) == ([1, 2], [3, 4])
        assert (first.logprobs, first.finish_reason, first.fingerprint) == ([-0.5, -1.0], "stop", "f1")
        assert second.logprobs is None, "two logprobs for one token"
        assert first.continuation == {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4]}
        [(path, body)] = server.calls
        assert (path, body["return_token_ids"], body["stream"]) == ("/v1/chat/completions", True, False)

    def test_render_generate_derender(self, ask: Ask) -> None:
        rendered = {
            "token_ids": [1, 2],
            "sampling_params": {"max_tokens": 5},
            "stream": False,
            "continuation": {"exact": True, "kept_tokens": 2},
        }
        prompt = ask(Server((200, rendered)), "render", CHAT)
        assert (prompt.token_ids, prompt.fingerprint) == ([1, 2], "f1")
        assert prompt.continuation == {"exact": True, "kept_tokens": 2}
        choice = {"index": 0, "token_ids": [3], "finish_reason": "length", "logprobs": None}
        server = Server((200, {"request_id": "r", "choices": [choice]}))
        [sample] = ask(server, "generate", prompt, {"temperature": 0}, priority=1)
        assert server.calls[0][1] == {
            "token_ids": [1, 2],
            "sampling_params": {"max_tokens": 5, "temperature": 0},
            "stream": False,
            "return_token_ids": True,
            "priority": 1,
        }
        assert (sample.prompt_token_ids, sample.output_token_ids, sample.message) == ([1, 2], [3], None)
        server = Server((200, {"id": "c", "choices": []}))
        assert ask(server, "derender", CHAT, sample) == {"id": "c", "choices": []}
        [(path, body)] = server.calls
        assert path == "/v1/chat/completions/derender"
        assert body["generate_response"]["choices"][0]["token_ids"] == [3]

    @pytest.mark.parametrize("body", [{"id": "x", "choices": [{"message": {}}]}, {"choices": []}, [], {}])
    def test_an_answer_without_ids_is_no_record(self, ask: Ask, body: Any) -> None:
        with pytest.raises(Unreadable):
            ask(Server((200, body)), "chat", CHAT)


class TestRetries:
    @pytest.mark.parametrize(
        "fault", [(503, {}), (429, {}), (502, {}), httpx.ConnectError("no"), httpx.ReadError("x")]
    )
    def test_what_passes_is_tried_again(self, ask: Ask, fault: Reply) -> None:
        server = Server(fault, fault, (200, answer([3])))
        assert ask(server, "chat", CHAT).samples[0].output_token_ids == [3]
        assert len(server.calls) == 3
        assert server.calls[0] == server.calls[2]

    def test_not_for_ever(self, ask: Ask) -> None:
        server = Server(httpx.ConnectError("no"))
        with pytest.raises(Unreachable) as ended:
            ask(server, "chat", CHAT)
        assert ended.value.attempts == len(server.calls) == 3

    def test_a_refusal_is_final_and_says_why(self, ask: Ask) -> None:
        error = {"message": "no", "type": "BadRequestError", "param": "messages", "code": 400}
        server = Server((400, {"error": error}))
        with pytest.raises(Refused) as ended:
            ask(server, "chat", CHAT)
        assert (ended.value.status, ended.value.type, ended.value.param) == (
            400,
            "BadRequestError",
            "messages",
        )
        assert len(server.calls) == 1

    def test_pauses_grow_and_heed_the_server(self) -> None:
        retries, broken = Retries(attempts=9, pause=1.0, longest_pause=5.0), Unreachable("x")
        assert [retries.pause_after(n, broken, {}) for n in (1, 2, 3, 4, 9)] == [1.0, 2.0, 4.0, 5.0, None]
        busy = Refused(503, b"")
        assert retries.pause_after(1, busy, {"retry-after": "3"}) == 3.0
        assert retries.pause_after(1, busy, {"retry-after": "3600"}) == 5.0
        assert retries.pause_after(1, busy, {"retry-after": "soon"}) == 1.0


class TestRollouts:
    def test_every_sample_once_whatever_was_retried(self, ask: Ask) -> None:
        good = (200, answer([7]))
        server = Server((503, {}), good, httpx.ReadError("x"), good)
        requests = [{**CHAT, "seed": 10 * i} for i in range(5)]
        rollouts: list[Rollout] = ask(server, "rollouts", requests, samples=3, concurrency=4)
        assert Counter((r.prompt, r.number) for r in rollouts) == Counter(
            {(i, n): 1 for i in range(5) for n in range(3)}
        )
        assert all(r.sample is not None for r in rollouts)
        assert sum(r.attempts for r in rollouts) == len(server.calls) == 15 + 2
        answered = {(call["seed"], call["n"]) for _, call in server.calls}
        assert answered == {(10 * i + n, 1) for i in range(5) for n in range(3)}

    def test_a_sample_that_fails_for_good_is_a_record_too(self, ask: Ask) -> None:
        [rollout] = ask(Server((400, {"error": {"message": "too long"}})), "rollouts", [CHAT])
        assert rollout.sample is None
        assert "too long" in rollout.error

    def test_a_small_group_does_not_wait_for_a_large_one(self, ask: Ask) -> None:
        server = Server((200, answer([7])))
        requests = [{**CHAT, "user": "large"}] * 30 + [{**CHAT, "user": "small"}] * 2
        groups = ["large"] * 30 + ["small"] * 2
        rollouts = ask(server, "rollouts", requests, samples=2, concurrency=2, groups=groups)
        assert len(rollouts) == 64
        small = [i for i, (_, call) in enumerate(server.calls) if call["user"] == "small"]
        assert small[-1] < 10, "four calls that take turns with the others, of which two may be under way"

    def test_each_request_has_a_group(self, ask: Ask) -> None:
        with pytest.raises(ValueError, match="1 groups for 2 requests"):
            ask(Server((200, answer([7]))), "rollouts", [CHAT, CHAT], groups=["a"])


class Crowd:
    """Counts how many are in it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exception: object) -> None:
        with self.lock:
            self.now -= 1


def test_no_more_are_under_way_than_allowed() -> None:
    crowd = Crowd()

    def slow(request: httpx.Request) -> httpx.Response:
        with crowd:
            time.sleep(0.01)
            return httpx.Response(200, json=answer([3]))

    with Client("http://o", transport=httpx.MockTransport(slow)) as client:
        assert len(list(client.rollouts([CHAT] * 12, concurrency=3))) == 12
    assert crowd.most <= 3


async def test_no_more_are_under_way_than_allowed_without_threads() -> None:
    crowd = Crowd()

    async def slow(request: httpx.Request) -> httpx.Response:
        with crowd:
            await asyncio.sleep(0.01)
            return httpx.Response(200, json=answer([3]))

    async with AsyncClient("http://o", transport=httpx.MockTransport(slow)) as client:
        assert len([rollout async for rollout in client.rollouts([CHAT] * 12, concurrency=3)]) == 12
    assert crowd.most == 3


async def test_rollouts_that_nobody_reads_are_ended() -> None:
    begun, ended = [0], [0]

    async def never(request: httpx.Request) -> httpx.Response:
        begun[0] += 1
        if begun[0] == 1:
            return httpx.Response(200, json=answer([3]))
        try:
            await asyncio.Event().wait()
        finally:
            ended[0] += 1
        raise AssertionError

    async with AsyncClient("http://o", transport=httpx.MockTransport(never)) as client:
        batch = client.rollouts([CHAT] * 5, concurrency=2)
        first = await anext(batch)
        await batch.aclose()  # type: ignore[attr-defined]
    assert first.sample is not None
    assert begun[0] - 1 == ended[0]


def test_errors_are_of_one_kind() -> None:
    for kind in (Refused, Unreachable, Unreadable):
        assert issubclass(kind, ClientError)
