"""A chat that names its conversation goes on from the token IDs of the turn before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, Status

RENDER = f"{CHAT}/render"


async def say(
    stack: Stack, *words: str, id: str | None = "c", headers: dict[str, str] | None = None, **options: Any
) -> tuple[int, dict[str, Any], str | None]:
    """Status, the answer's body (of a stream: its last chunk) and what its header says. A word of n letters
    is token n."""
    body = {"model": "m", "messages": [{"role": "user", "content": word} for word in words], "max_tokens": 3}
    named = {} if id is None else {"conversation_id": id}
    response = await stack.http.post(CHAT, json=body | named | options, headers=headers)
    told = response.headers.get("x-pd-continuation")
    if not options.get("stream") or response.status_code != 200:
        return response.status_code, response.json(), told
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return response.status_code, json.loads(events[-2]), told


def carried(stack: Stack) -> list[dict[str, Any] | None]:
    """Of each request that render got."""
    return [body.get("continuation") for body in stack.render.requests[RENDER]]


def results(stack: Stack) -> dict[str, float]:
    [family] = stack.services.metrics.conversations.collect()
    return {s.labels["result"]: s.value for s in family.samples if s.name.endswith("_total")}


FIRST = {"prompt_token_ids": [2, 3], "output_token_ids": [100, 101, 102]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_next_turn_goes_on_from_the_last(launch: Launch, stream: bool) -> None:
    how: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with launch() as stack:
        _, first, told = await say(stack, "xx", "xxx", **how)
        assert first["continuation"]["reason"] == "unknown_conversation"
        assert first["continuation"]["exact"] is False
        assert told == "parted; kept_tokens=0; reason=unknown_conversation"
        _, second, told = await say(stack, "xx", "xxx", "xxxx", **how)
        assert second["continuation"] == {"exact": True, "kept_tokens": 5}
        assert told == "exact; kept_tokens=5"
        await say(stack, "x", **how)
        after = {"prompt_token_ids": [2, 3, 100, 101, 102, 4], "output_token_ids": [103, 104, 105]}
        assert carried(stack) == [None, FIRST, after]
        assert results(stack) == {"unknown_conversation": 1, "exact": 2}
        await stack.settled()


async def test_a_turn_can_be_asked_again(launch: Launch) -> None:
    async with launch() as stack:
        await say(stack, "xx", "xxx")
        status, _, _ = await say(stack, "xx", "xxx", "xxxx", n=2)
        assert status == 200
        await say(stack, "xx", "xxx", "xxxxx")
        assert carried(stack) == [None, FIRST, FIRST], "of several choices none is the conversation's"


async def test_only_what_was_answered_is_a_turn(launch: Launch) -> None:
    async with launch() as stack:
        await say(stack, "xx", "xxx")
        for path in (f"{CHAT}/derender", RENDER):
            stack.render.faults[path] += [Status(500), Status(500)]
            status, _, _ = await say(stack, "xxxx")
            assert status >= 500
        await say(stack, "xxxxx")
        assert carried(stack)[-1] == FIRST


async def test_output_past_a_stop_string_is_no_part_of_the_turn(launch: Launch) -> None:
    for stream in (False, True):
        async with launch() as stack:
            await say(stack, "xx", "xxx", stop=["t101"], max_tokens=9, stream=stream)
            await say(stack, "x")
            turn = carried(stack)[1]
            assert turn is not None
            assert turn["output_token_ids"] == [100, 101]


@pytest.mark.parametrize("other", [{"headers": {"X-Tenant-Id": "b"}}, {"id": "C"}, {"model": "n"}], ids=str)
async def test_no_other_conversation_is_gone_on_from(launch: Launch, other: dict[str, Any]) -> None:
    async with launch() as stack:
        await say(stack, "xx", "xxx")
        await say(stack, "xx", "xxx", "x", **other)
        assert carried(stack) == [None, None]


async def test_a_turn_with_images_is_gone_on_from(launch: Launch) -> None:
    async with launch() as stack:
        stack.render.features = {
            "mm_hashes": {"image": ["aa"]},
            "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
            "kwargs_data": {"image": ["cGl4ZWxz"]},
        }
        await say(stack, "xx", "xxx")
        _, body, _ = await say(stack, "xx", "xxx", "xxxx")
        assert body["continuation"] == {"exact": True, "kept_tokens": 5}
        assert carried(stack) == [None, FIRST]
        await stack.settled()


async def test_who_names_none_is_told_nothing(launch: Launch) -> None:
    async with launch() as stack:
        _, body, told = await say(stack, "xx", id=None)
        assert "continuation" not in body
        assert told is None
        _, chunk, told = await say(stack, "xx", stream=True)
        assert chunk["choices"], "a stream tells it in its usage chunk"
        assert told is not None


async def test_ids_that_are_carried_win_and_the_answer_is_kept(launch: Launch) -> None:
    own = {"prompt_token_ids": [7], "output_token_ids": [8]}
    async with launch() as stack:
        await say(stack, "xx", "xxx")
        _, body, _ = await say(stack, "x", continuation=own)
        assert body["continuation"] == {"exact": True, "kept_tokens": 2}
        await say(stack, "x", id=None, continuation=own)
        await say(stack, "x")
        assert carried(stack)[1:3] == [own, own]
        assert carried(stack)[3] == {"prompt_token_ids": [7, 8, 1], "output_token_ids": [100, 101, 102]}


async def test_who_insists_is_refused_where_nothing_is_kept(launch: Launch) -> None:
    async with launch() as stack:
        status, body, told = await say(stack, "xx", continuation_strict=True)
        assert status == 400
        assert body["error"]["type"] == "ContinuationRefusedError"
        assert body["error"]["param"] == "conversation_id"
        assert body["error"]["message"].startswith("unknown_conversation: ")
        assert told is None
        assert not stack.render.requests[RENDER]
        await stack.settled()


async def test_a_render_tier_that_knows_no_continuations(launch: Launch) -> None:
    async with launch() as stack:
        stack.render.continues = False
        await say(stack, "xx", "xxx")
        _, body, _ = await say(stack, "xx", "xxx")
        assert body["continuation"]["reason"] == "not_supported"
        status, body, _ = await say(stack, "xx", "xxx", continuation_strict=True)
        assert (status, body["error"]["param"]) == (502, "continuation_strict")
        assert results(stack) == {"unknown_conversation": 1, "not_supported": 2}
        await stack.settled()


@pytest.mark.parametrize("strict", [False, True])
async def test_kept_ids_that_render_does_not_know_any_more(launch: Launch, strict: bool) -> None:
    error = {"message": "outside the vocabulary", "type": "BadRequestError", "code": 400}
    refusal = Status(400, json.dumps({"error": error | {"param": "continuation.output_token_ids"}}).encode())
    async with launch() as stack:
        await say(stack, "xx", "xxx")
        stack.render.faults[RENDER].append(refusal)
        status, body, _ = await say(stack, "xx", "xxx", continuation_strict=strict)
        assert carried(stack) == [None, FIRST, None]
        if strict:
            assert (status, body["error"]["type"]) == (400, "ContinuationRefusedError")
        else:
            assert body["continuation"]["reason"] == "unknown_conversation"
        stack.render.faults[RENDER].append(refusal)
        status, body, _ = await say(stack, "xx", id=None, continuation=FIRST)
        assert (status, body["error"]["param"]) == (400, "continuation.output_token_ids"), "the client's own"
        await stack.settled()


@pytest.mark.parametrize("id", ["", "x" * 257, 7, ["c"], {"a": 1}], ids=repr)
async def test_ids_that_are_none(launch: Launch, id: Any) -> None:
    async with launch() as stack:
        status, body, _ = await say(stack, "xx", id=None, conversation_id=id)
        assert (status, body["error"]["param"]) == (400, "conversation_id")


async def test_bounds(launch: Launch) -> None:
    async with launch(settings={"conversations": {"entries": 1, "seconds": 600}}) as stack:
        await say(stack, "xx", "xxx")
        await say(stack, "xx", id="d")
        await say(stack, "xx", "xxx")
        assert carried(stack) == [None, None, None]
