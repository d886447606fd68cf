"""Each public report about P/D orchestration, by its number in the project's list, as a named test.

The shell is real; engines and render tier are the fault injector, which keeps the books of real engines and
notes as a violation whatever one of them would have answered with another request's text.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from orchestrator.core.deadline import TIMEOUT_HEADER
from tests.orchestrator.conftest import Stack, launched, until
from tests.orchestrator.faults import (
    CHAT,
    GENERATE,
    Answer,
    ErrorEvent,
    Expired,
    HalfClose,
    Reused,
    Slow,
    Stall,
    Status,
)


async def ask(stack: Stack, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4} | options
    return await stack.http.post("/v1/chat/completions", json=body, headers=headers)


def prefill_legs(stack: Stack) -> list[dict[str, Any]]:
    return [leg for tier in stack.prefill for leg in tier.requests[GENERATE]]


def decode_legs(stack: Stack) -> list[dict[str, Any]]:
    return [leg for tier in stack.decode for leg in tier.requests[GENERATE]]


async def test_65_client_params_do_not_reach_the_prefill_leg() -> None:
    async with launched() as stack:
        response = await ask(stack, stop=["t102"], min_tokens=3, n=2, stream=True, logprobs=True, seed=1)
        assert response.status_code == 200
        for leg in prefill_legs(stack):
            sampling = leg["sampling_params"]
            assert (sampling["max_tokens"], sampling["min_tokens"], sampling["n"]) == (1, 0, 1)
            assert sampling["ignore_eos"] is True
            assert leg["stream"] is False
            assert not {"stop", "stop_token_ids", "logprobs"} & set(sampling)
        assert not any(leg["sampling_params"].get("stop") for leg in decode_legs(stack))


async def test_66_one_token_is_one_token_and_prefills_own_token_is_nobodys() -> None:
    settings = {"policy": {"skip_prefill_for_one_token": False}}
    async with launched(settings=settings) as stack:
        answer = (await ask(stack, max_tokens=1)).json()
        assert answer["choices"][0]["message"]["content"] == "t100 "
        assert answer["usage"]["completion_tokens"] == 1
        assert len(prefill_legs(stack)) == 1


@pytest.mark.parametrize("fault", [Expired(), Reused()], ids=str)
async def test_67_stale_or_reused_params_never_reach_decode(fault: Any) -> None:
    async with launched() as stack:
        assert (await ask(stack)).status_code == 200
        stack.prefill[0].faults[GENERATE].append(fault)
        assert (await ask(stack)).status_code == 502
        assert len(decode_legs(stack)) == 1
        await stack.settled()


async def test_67_a_decode_retry_runs_prefill_again() -> None:
    async with launched(settings={"policy": {"retry_lone_decode": True}}) as stack:
        stack.decode[0].faults[GENERATE].append(Status(500))
        assert (await ask(stack)).status_code == 200
        used = [leg["kv_transfer_params"]["remote_request_id"] for leg in decode_legs(stack)]
        assert len(set(used)) == len(prefill_legs(stack)) == 2
        await stack.settled()


@pytest.mark.parametrize("held_kv", ["free", "lease"])
async def test_68_kv_of_a_client_that_left_before_decode_is_freed_or_counted(held_kv: str) -> None:
    settings = {"policy": {"held_kv": held_kv}, "admission": {"decode_per_member": 1}}
    async with launched(settings=settings) as stack:
        stack.decode[0].hold.clear()
        first = asyncio.create_task(ask(stack))
        await stack.decode[0].waiting.wait()
        leaver = asyncio.create_task(ask(stack))
        await until(lambda: stack.services.integrity.leases == 2)
        leaver.cancel()
        await until(lambda: held_kv == "free" or stack.services.integrity.leases == 1)
        await until(lambda: held_kv == "lease" or len(decode_legs(stack)) == 2)
        stack.decode[0].hold.set()
        assert (await first).status_code == 200
        await stack.settled()
        assert len(stack.prefill[0].held) == (held_kv == "lease")
        assert stack.services.metrics.stranded.labels("client_gone")._value.get() == (held_kv == "lease")


async def test_69_decode_is_not_aborted_while_it_pulls_kv() -> None:
    async with launched(pace=0.01, settings={"timeouts": {"cleanup": 20.0}}) as stack:
        stack.decode[0].hold.clear()
        leaver = asyncio.create_task(ask(stack, max_tokens=500))
        await stack.decode[0].waiting.wait()
        leaver.cancel()
        await until(lambda: "draining" in repr(stack.services.exchanges))
        assert not stack.decode[0].aborted
        assert not stack.decode[0].broken_off
        stack.decode[0].hold.set()
        await stack.settled()
        assert len(stack.decode[0].aborted) == 1


@pytest.mark.parametrize("placement", ["top", "extra_args", "both"])
async def test_70_a_prefill_without_params_is_noticed_and_old_engines_get_theirs_where_they_look(
    placement: str,
) -> None:
    async with launched(settings={"policy": {"kv_params_placement": placement}}) as stack:
        stack.prefill[0].faults[GENERATE].append(Answer({"kv_transfer_params": None}))
        assert (await ask(stack)).status_code == 502
        assert stack.services.metrics.unusable_prefills._value.get() == 1
        [leg] = prefill_legs(stack)
        assert (leg.get("kv_transfer_params") is not None) == (placement != "extra_args")
        inside = (leg["sampling_params"].get("extra_args") or {}).get("kv_transfer_params")
        assert (inside is not None) == (placement != "top")


async def test_71_equal_client_ids_are_different_ids_inside() -> None:
    async with launched() as stack:
        both = await asyncio.gather(*(ask(stack, {"X-Request-Id": "same"}) for _ in range(2)))
        assert [(r.status_code, r.headers["x-request-id"]) for r in both] == [(200, "same")] * 2
        legs = [*prefill_legs(stack), *decode_legs(stack)]
        assert len({leg["request_id"] for leg in legs}) == 4
        sent = stack.prefill[0].headers[GENERATE] + stack.decode[0].headers[GENERATE]
        assert not any("x-request-id" in headers for headers in sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_72_a_refusal_by_decode_keeps_its_status_and_is_not_retried(stream: bool) -> None:
    refusal = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'
    async with launched() as stack:
        stack.decode[0].faults[GENERATE] += [Status(400, refusal)] * 3
        response = await ask(stack, stream=stream)
        assert response.status_code == 400
        assert len(decode_legs(stack)) == 1
        await stack.settled()


async def test_72_a_late_decode_error_is_an_event_never_an_empty_200() -> None:
    async with launched(pace=0.02) as stack:
        stack.decode[0].faults[GENERATE].append(ErrorEvent(3))
        response = await ask(stack, stream=True, max_tokens=30)
        *_, error, done, _ = response.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 502
        assert done == "data: [DONE]"


async def test_73_several_choices_are_pairs_of_their_own_merged_by_index() -> None:
    async with launched() as stack:
        answer = (await ask(stack, n=3, seed=5)).json()
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
        assert len({c["message"]["content"] for c in answer["choices"]}) == 3
        used = [leg["kv_transfer_params"]["remote_request_id"] for leg in decode_legs(stack)]
        assert len(set(used)) == len(prefill_legs(stack)) == 3


async def test_74_usage_is_from_the_hop_that_knows() -> None:
    async with launched() as stack:
        usage = (await ask(stack)).json()["usage"]
        assert usage["prompt_tokens"] == 3
        assert usage["completion_tokens"] == 4
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3, "prefill says 3, decode would say 5"


async def test_75_prompt_logprobs_are_asked_of_prefill_alone() -> None:
    async with launched() as stack:
        answer = (await ask(stack, prompt_logprobs=1)).json()
        assert answer["prompt_logprobs"] == [None, {"7": {"logprob": -1.5, "rank": 1}}]
        assert decode_legs(stack)[0]["sampling_params"].get("prompt_logprobs") is None


async def test_76_both_legs_carry_the_same_ids() -> None:
    async with launched() as stack:
        await ask(stack)
        assert prefill_legs(stack)[0]["token_ids"] == decode_legs(stack)[0]["token_ids"] == [3, 3, 5]


@pytest.mark.parametrize(("status", "legs"), [(502, 2), (503, 2), (504, 2), (500, 1)])
async def test_77_prefill_fails_fast_and_is_repeated_only_where_that_can_help(status: int, legs: int) -> None:
    async with launched(prefill=2) as stack:
        for tier in stack.prefill:
            tier.faults[GENERATE] += [Status(status)] * 2
        assert (await ask(stack)).status_code in (502, 503)
        assert len(prefill_legs(stack)) == legs
        assert not decode_legs(stack)
        await stack.settled()


async def test_78_what_decode_has_cached_is_not_prefilled_again() -> None:
    settings = {
        "selection": {"prefix_block_tokens": 4},
        "policy": {"skip_prefill_below_uncached_tokens": 8},
    }
    async with launched(decode=2, settings=settings) as stack:
        long = [{"role": "user", "content": "word " * 40}]
        for _ in range(3):
            assert (await ask(stack, messages=long)).status_code == 200
        assert len(prefill_legs(stack)) == 1


async def test_80_a_restarted_prefill_engine_is_kept_out_until_it_is_well_and_owes_nothing() -> None:
    async with launched(prefill=2) as stack:
        await stack.prefill[0].kill()
        await stack.services.check_health()
        for _ in range(4):
            assert (await ask(stack)).status_code == 200
        assert not stack.prefill[0].requests[GENERATE]
        await stack.prefill[0].revive()
        await stack.services.check_health()
        assert stack.services.prefill_pool.well == 2
        await stack.settled()


async def test_a_deadline_is_told_to_every_hop_and_shrinks_on_the_way() -> None:
    async with launched() as stack:
        stack.render.faults[f"{CHAT}/render"].append(Slow(0.1))
        assert (await ask(stack, timeout=20)).status_code == 200
        name = TIMEOUT_HEADER.lower()
        times = [
            float(tier.headers[path][0][name])
            for tier, path in (
                (stack.render, f"{CHAT}/render"),
                (stack.prefill[0], GENERATE),
                (stack.decode[0], GENERATE),
            )
        ]
        assert 20 >= times[0] > times[1] > times[2] > 0


async def test_a_disconnect_is_noticed_at_once_while_nothing_is_being_sent() -> None:
    """No timer of the orchestrator is shorter than 30 s here, and the test's own limit is."""
    async with launched() as stack:
        stack.prefill[0].hold.clear()
        _reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.url.rpartition(":")[2]))
        body = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await stack.prefill[0].waiting.wait()
        writer.close()
        async with asyncio.timeout(20):
            await until(lambda: len(stack.prefill[0].aborted) == 1)
        await stack.settled()


# ---- cancellation at every await of the four-hop path ------------------------------------------------------

AWAITS = [
    ("render", f"{CHAT}/render", Stall()),
    ("prefill", GENERATE, Stall()),
    ("decode", GENERATE, Stall()),
    ("decode", GENERATE, Stall(2)),
    ("render", f"{CHAT}/derender", Stall()),
    ("decode", GENERATE, HalfClose()),
]


@pytest.mark.parametrize("held_kv", ["free", "lease"])
@pytest.mark.parametrize("abort", ["first_token", "at_once"])
@pytest.mark.parametrize("how", ["client", "deadline", "shutdown"])
async def test_given_up_at_any_await_nothing_is_left(held_kv: str, abort: str, how: str) -> None:
    """One request for each place at which the path can wait, whole and streamed, all given up together."""
    settings = {
        "policy": {"held_kv": held_kv, "abort_decode": abort},
        "timeouts": {"cleanup": 0.3},
        "server": {"grace": 0.5},
    }
    async with launched(prefill=2, decode=2, pace=0.005, settings=settings) as stack:
        for role, path, fault in AWAITS:
            for stream in (True, False):
                tier = stack.render if role == "render" else getattr(stack, role)[0]
                other = None if role == "render" else getattr(stack, role)[1]
                for each in (tier, other):
                    if each is not None:
                        each.faults[path].append(fault)
                timeout = {"timeout": 0.4} if how == "deadline" else {}
                asking = asyncio.create_task(ask(stack, stream=stream, max_tokens=400, **timeout))
                if how == "client":
                    await asyncio.sleep(0.15)
                    asking.cancel()
                elif how == "shutdown":
                    await asyncio.sleep(0.15)
                    stack.services.end_exchanges()
                done = await asyncio.gather(asking, return_exceptions=True)
                if how != "client":
                    assert isinstance(done[0], httpx.Response), done
                await stack.settled()
                for each in (tier, other):
                    if each is not None:
                        each.faults[path].clear()
