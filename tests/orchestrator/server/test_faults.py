"""Every hop failing in every way: the client gets the right answer or one honest error, and nothing is left
behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
import structlog.testing

from render_tier.protocol.errors import Unavailable
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import (
    ABORT,
    CHAT,
    GENERATE,
    Answer,
    ErrorEvent,
    Expired,
    Fault,
    Garbage,
    HalfClose,
    Stall,
    Status,
)

MESSAGES: Any = [{"role": "user", "content": "one two three"}]
RENDER, DERENDER = f"{CHAT}/render", f"{CHAT}/derender"
SHORT = {
    "timeouts": {"render": 0.2, "prefill": 0.2, "decode_first": 0.2, "decode_idle": 0.2, "derender": 0.2}
}


def text_of(count: int) -> str:
    return "".join(f"t{100 + i} " for i in range(count))


async def whole(stack: Stack, **options: Any) -> str:
    answer = await stack.client.chat.completions.create(
        model="m", messages=MESSAGES, **({"max_tokens": 5} | options)
    )
    return answer.choices[0].message.content or ""


async def streamed(stack: Stack, received: list[str] | None = None, **options: Any) -> str:
    text = [] if received is None else received
    stream = await stack.client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, **({"max_tokens": 5} | options)
    )
    async for chunk in stream:
        if chunk.choices:
            text.append(chunk.choices[0].delta.content or "")
    return "".join(text)


def stranded(stack: Stack) -> dict[str, int]:
    """By reason: how much KV may sit out a lease."""
    return {
        sample.labels["reason"]: int(sample.value)
        for metric in stack.services.metrics.stranded.collect()
        for sample in metric.samples
        if sample.name == "pd_stranded_kv_total" and sample.value
    }


ASK = pytest.mark.parametrize("ask", [whole, streamed])


def tier_of(stack: Stack, path: str, role: str) -> Any:
    return stack.render if path != GENERATE else getattr(stack, role)[0]


PASSING: list[tuple[str, str, Fault]] = [
    ("render", RENDER, Status(503)),
    ("render", RENDER, Status(500)),
    ("render", RENDER, HalfClose()),
    ("render", RENDER, Garbage(b"[]")),
    ("prefill", GENERATE, Status(503)),
    ("prefill", GENERATE, Status(502)),
    ("prefill", GENERATE, HalfClose()),
    ("prefill", GENERATE, Garbage(b"\xff")),
    ("decode", GENERATE, Status(503)),
    ("decode", GENERATE, Status(500)),
    ("decode", GENERATE, HalfClose()),
    ("decode", GENERATE, Garbage()),
    ("decode", GENERATE, Garbage(b'data: {"choices": [{"index": 0}, {"index": 1}]}\n\n')),
    ("decode", GENERATE, ErrorEvent()),
    ("derender", DERENDER, Status(500)),
    ("derender", DERENDER, HalfClose()),
    ("derender", DERENDER, Garbage(b"{}")),
]

DEEP = b"[" * 2000 + b"]" * 2000
PASSING_DEEP = [
    pytest.param("prefill", GENERATE, Status(503, b'{"error":%s}' % DEEP), id="prefill-error"),
    *(
        pytest.param(role, path, Garbage(framed % (field, DEEP)), id=f"{role}-{field.decode()}")
        for role, path, framed, field in (
            ("render", RENDER, b'{"%s":%s}', b"features"),
            ("prefill", GENERATE, b'{"kv_transfer_params":{"%s":%s}}', b"remote_block_ids"),
            ("prefill", GENERATE, b'{"ec_transfer_params":{"%s":%s}}', b"image"),
            ("decode", GENERATE, b'data: {"kv_transfer_params":{"%s":%s}}\n\n', b"remote_block_ids"),
            ("derender", DERENDER, b'{"%s":%s}', b"chunk"),
        )
    ),
]


@ASK
@pytest.mark.parametrize(("role", "path", "fault"), [*PASSING, *PASSING_DEEP], ids=str)
async def test_one_failure_before_visible_output_is_repaired(
    launch: Launch, ask: Any, role: str, path: str, fault: Fault
) -> None:
    async with launch(settings={"policy": {"retry_lone_decode": True}}) as stack:
        tier_of(stack, path, role).faults[path].append(fault)
        assert await ask(stack) == text_of(5)
        await stack.settled()


@ASK
@pytest.mark.parametrize(("role", "path", "fault"), [*PASSING, *PASSING_DEEP], ids=str)
async def test_lasting_failure_is_one_honest_error(
    launch: Launch, ask: Any, role: str, path: str, fault: Fault
) -> None:
    async with launch() as stack:
        tier_of(stack, path, role).faults[path] += [fault] * 4
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(stack)
        assert raised.value.status_code in (502, 503)
        assert "secrets" not in str(raised.value)
        assert "scripted" not in str(raised.value), "the member's own words stay inside"
        await stack.settled()


@pytest.mark.parametrize("events", [b"[]", b"[{},{}]"])
async def test_events_that_are_not_of_the_api_are_the_render_tiers_fault(
    launch: Launch, events: bytes
) -> None:
    async with launch() as stack:
        stack.render.faults[DERENDER] += [Garbage(b'{"events":' + events + b',"derender":{}}')] * 4
        with pytest.raises(openai.APIError) as raised:
            await streamed(stack)
        assert "internal error" not in str(raised.value)
        assert "cannot be read" in str(raised.value)
        await stack.settled()


@ASK
@pytest.mark.parametrize(
    ("role", "path"),
    [("render", RENDER), ("prefill", GENERATE), ("decode", GENERATE), ("derender", DERENDER)],
)
async def test_a_silent_hop_times_out(launch: Launch, ask: Any, role: str, path: str) -> None:
    async with launch(settings=SHORT) as stack:
        tier = tier_of(stack, path, role)
        tier.faults[path].append(Stall())
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(stack)
        assert raised.value.status_code == 504
        await stack.settled()
        if role == "prefill":
            [leg] = tier.requests[GENERATE]
            assert tier.aborted == [f"generate-tokens-{leg['request_id']}"]


@ASK
@pytest.mark.parametrize(
    ("role", "path"),
    [("render", RENDER), ("prefill", GENERATE), ("decode", GENERATE), ("derender", DERENDER)],
)
async def test_the_request_deadline_ends_everything(launch: Launch, ask: Any, role: str, path: str) -> None:
    async with launch() as stack:
        tier = tier_of(stack, path, role)
        tier.faults[path].append(Stall())
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(stack, extra_headers={"X-Request-Timeout": "0.3"})
        assert raised.value.status_code == 504
        await stack.settled()


@ASK
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_4xx_is_passed_on_in_kind_and_not_repeated(launch: Launch, ask: Any, role: str) -> None:
    refusal = b'{"error":{"message":"too long for me","type":"BadRequestError","param":"x","code":400}}'
    async with launch() as stack:
        tier = tier_of(stack, GENERATE, role)
        tier.faults[GENERATE] += [Status(400, refusal)] * 3
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(stack)
        assert raised.value.body == {
            "message": "too long for me",
            "type": "BadRequestError",
            "param": "x",
            "code": 400,
        }
        assert len(tier.requests[GENERATE]) == 1
        await stack.settled()
        assert stack.services.metrics.stranded.labels("decode_failed")._value.get() == (role == "decode")


MISPLACED = (
    b'{"error":{"message":"this is a decode engine","type":"BadRequestError","param":"kv_transfer_params",'
    b'"code":400}}'
)
WORDED = (
    b'{"error":{"message":"do_remote_decode: wrong role","type":"BadRequestError","param":null,"code":400}}'
)


@pytest.mark.parametrize("refusal", [MISPLACED, WORDED], ids=["param", "words"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_4xx_about_what_the_client_did_not_send_is_a_configuration_error(
    launch: Launch, role: str, refusal: bytes
) -> None:
    async with launch() as stack:
        tier_of(stack, GENERATE, role).faults[GENERATE] += [Status(400, refusal)] * 3
        with structlog.testing.capture_logs() as lines, pytest.raises(openai.InternalServerError) as raised:
            await whole(stack)
        assert raised.value.status_code == 502
        assert "engine" not in str(raised.value)
        errors = [line for line in lines if line["log_level"] == "error"]
        assert errors
        assert all(line["event"].startswith("configuration error") for line in errors)
        await stack.settled()


REPEATED: tuple[tuple[int, str, str | None], ...] = (
    (404, "The model `kv_transfer_params` does not exist.", None),
    (400, "Failed to transform regex into a grammar: (?<do_remote_prefill>x", None),
    (400, "1 validation error:\n  {'x': 'kv_transfer_params'}", "body.sampling_params.kv_transfer_params"),
    (400, "1 validation error", "sampling_params.logit_bias.request_id"),
)  # fmt: skip


@pytest.mark.parametrize(("status", "message", "param"), REPEATED)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_refusal_that_repeats_a_clients_words_does_not_count_against_the_engine(
    launch: Launch, role: str, status: int, message: str, param: str | None
) -> None:
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    async with launch() as stack:
        tier = tier_of(stack, GENERATE, role)
        tier.faults[GENERATE] += [Status(status, json.dumps({"error": error}).encode())] * 6
        for _ in range(6):
            with pytest.raises(openai.APIStatusError) as raised:
                await whole(stack)
            assert raised.value.status_code == status
        await stack.settled()
        pool = stack.services.prefill_pool if role == "prefill" else stack.services.decode_pool
        assert not any(pool.avoids(member) for member in pool.members)
        assert await whole(stack) == text_of(5)


async def test_one_misplaced_prefill_engine_is_worked_around(launch: Launch) -> None:
    async with launch(prefill=2) as stack:
        stack.prefill[0].faults[GENERATE] += [Status(400, MISPLACED)] * 9
        for _ in range(4):
            assert await whole(stack) == text_of(5)
        await stack.settled()


async def test_overload_keeps_its_status(launch: Launch) -> None:
    async with launch() as stack:
        stack.prefill[0].faults[GENERATE] += [Status(429)] * 2
        with pytest.raises(openai.RateLimitError):
            await whole(stack)


async def test_wrong_credentials_of_ours_are_not_the_clients_fault(launch: Launch) -> None:
    async with launch() as stack:
        stack.decode[0].faults[GENERATE] += [Status(401, b'{"error":"Unauthorized"}')] * 3
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        await stack.settled()


async def test_a_500_of_prefill_is_not_tried_on_the_next_engine(launch: Launch) -> None:
    """A prompt that ends one engine would end the next one too."""
    async with launch(prefill=2) as stack:
        for tier in stack.prefill:
            tier.faults[GENERATE].append(Status(500))
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        assert sum(len(tier.requests[GENERATE]) for tier in stack.prefill) == 1


async def test_a_retry_prefers_another_member(launch: Launch) -> None:
    async with launch(prefill=2, decode=2) as stack:
        for tier in (*stack.prefill, *stack.decode):
            tier.faults[GENERATE].append(HalfClose())
        stack.prefill[1].faults[GENERATE].clear()
        stack.decode[1].faults[GENERATE].clear()
        for _ in range(3):
            assert await whole(stack) == text_of(5)
        await stack.settled()


@ASK
@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_lone_decode_engine_that_answers_5xx_costs_no_second_prefill(
    launch: Launch, ask: Any, status: int
) -> None:
    async with launch() as stack:
        stack.decode[0].faults[GENERATE].append(Status(status))
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(stack)
        assert raised.value.status_code == (503 if status == 503 else 502)
        assert len(stack.prefill[0].requests[GENERATE]) == len(stack.decode[0].requests[GENERATE]) == 1
        await stack.settled()
        assert stack.services.metrics.stranded.labels("decode_failed")._value.get() == 1
    async with launch(decode=2) as stack:
        for tier in stack.decode:
            tier.faults[GENERATE].append(Status(status))
        with pytest.raises(openai.InternalServerError):
            await ask(stack)
        assert [len(tier.requests[GENERATE]) for tier in stack.decode] == [1, 1], "each has been asked"
        await stack.settled()


async def test_a_decode_retry_prefills_again_and_never_reuses_params(launch: Launch) -> None:
    async with launch(settings={"policy": {"retry_lone_decode": True}}) as stack:
        stack.decode[0].faults[GENERATE] += [Status(500)]
        assert await whole(stack) == text_of(5)
        sent = [r["kv_transfer_params"]["remote_request_id"] for r in stack.decode[0].requests[GENERATE]]
        assert len(sent) == len(set(sent)) == 2
        ids = [r["request_id"] for t in (stack.prefill[0], stack.decode[0]) for r in t.requests[GENERATE]]
        assert len(ids) == len(set(ids)) == 4
        await stack.settled()
        assert stack.services.metrics.stranded.labels("decode_retry")._value.get() == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(finish_reason="stop"),
        Answer({"kv_transfer_params": None}),
        Answer({"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "h"}}),
        Answer({"choices": []}),
    ],
    ids=["ended by stop", "no params", "incomplete params", "no choice"],
)
async def test_unusable_prefill_fails_or_recomputes_as_configured(launch: Launch, answer: Answer) -> None:
    async with launch() as stack:
        stack.prefill[0].faults[GENERATE].append(answer)
        with pytest.raises(openai.InternalServerError) as raised:
            await whole(stack)
        assert raised.value.status_code == 502
        assert not stack.decode[0].requests[GENERATE]
        await stack.settled()
    async with launch(settings={"policy": {"prefill_failure": "recompute"}}) as stack:
        stack.prefill[0].faults[GENERATE].append(answer)
        assert await whole(stack) == text_of(5)
        [decode] = stack.decode[0].requests[GENERATE]
        assert decode.get("kv_transfer_params") is None
        assert stack.services.metrics.recomputes._value.get() == 1
        await stack.settled()


@pytest.mark.parametrize("fault", [HalfClose(3), Garbage(after=3), ErrorEvent(3), Stall(3)], ids=str)
async def test_decode_dying_mid_stream_is_an_error_event_and_a_closed_stream(
    launch: Launch, fault: Fault
) -> None:
    async with launch(pace=0.02, settings={"timeouts": {"decode_idle": 0.3}}) as stack:
        stack.decode[0].faults[GENERATE].append(fault)
        received: list[str] = []
        with pytest.raises(openai.APIError) as raised:
            await streamed(stack, received, max_tokens=50)
        assert not isinstance(raised.value, openai.APIStatusError), "the status was 200 by then"
        # What was on its way through derender when decode died may be missing, but nothing is invented.
        assert received
        assert text_of(3).startswith("".join(received))
        assert "secrets" not in str(raised.value)
        await stack.settled()


async def test_the_error_event_is_followed_by_done(launch: Launch) -> None:
    async with launch(pace=0.3) as stack:  # the first token is shown before the answer breaks off
        stack.decode[0].faults[GENERATE].append(HalfClose(2))
        body = {"messages": MESSAGES, "max_tokens": 9, "stream": True}
        lines = (await stack.http.post("/v1/chat/completions", json=body)).text.strip().split("\n\n")
        assert '"error"' in lines[-2]
        assert lines[-1] == "data: [DONE]"


async def test_decode_dying_mid_answer_is_invisible_when_the_answer_is_whole(launch: Launch) -> None:
    async with launch() as stack:
        stack.decode[0].faults[GENERATE].append(HalfClose(3))
        assert await whole(stack) == text_of(5)
        await stack.settled()


async def test_one_choice_failing_ends_the_others(launch: Launch) -> None:
    async with launch(pace=0.01) as stack:
        stack.decode[0].faults[GENERATE] += [None, HalfClose(0), HalfClose(0), HalfClose(0), HalfClose(0)]
        with pytest.raises(openai.InternalServerError):
            await whole(stack, n=2, max_tokens=500)
        await stack.settled()
        assert stack.decode[0].sent_tokens < 500


async def test_no_decode_engine_at_all(launch: Launch) -> None:
    async with launch(decode=0) as stack:
        with pytest.raises(openai.InternalServerError) as raised:
            await whole(stack)
        assert raised.value.status_code == 503
        await stack.settled()
        assert not stack.prefill[0].requests[GENERATE]


@ASK
async def test_while_decode_is_known_to_be_down_nothing_is_rendered_or_prefilled(
    launch: Launch, ask: Any
) -> None:
    async with launch(decode=2) as stack:
        for tier in stack.decode:
            tier.healthy = False
        await stack.services.check_health()
        for _ in range(4):
            with pytest.raises(openai.InternalServerError) as raised:
                await ask(stack)
            assert raised.value.status_code == 503
            assert raised.value.response.headers["retry-after"]
        await stack.settled()
        assert not stack.render.requests
        assert not stack.prefill[0].requests[GENERATE]
        stack.decode[0].healthy = True
        await stack.services.check_health()
        assert await ask(stack) == text_of(5)


async def test_decode_that_cannot_be_reached_costs_one_prefill_at_most(launch: Launch) -> None:
    """Its death is noticed by the first request, and that one has nowhere to be repeated."""
    async with launch() as stack:
        await stack.decode[0].kill()
        for _ in range(4):
            with pytest.raises(openai.InternalServerError) as raised:
                await whole(stack)
            assert raised.value.status_code == 503
        await stack.settled()
        assert len(stack.prefill[0].requests[GENERATE]) == 1
        await stack.decode[0].revive()
        await stack.services.check_health()
        assert await whole(stack) == text_of(5)


@pytest.mark.parametrize("failure", ["fail", "recompute"])
async def test_while_prefill_is_known_to_be_down_requests_fail_or_decode_computes(
    launch: Launch, failure: str
) -> None:
    async with launch(settings={"policy": {"prefill_failure": failure}}) as stack:
        stack.prefill[0].healthy = False
        await stack.services.check_health()
        if failure == "fail":
            with pytest.raises(openai.InternalServerError) as raised:
                await whole(stack)
            assert raised.value.status_code == 503
        else:
            assert await whole(stack) == text_of(5)
        assert not stack.prefill[0].requests[GENERATE]
        await stack.settled()


def states(stack: Stack) -> list[str]:
    return [run.machine.state.value for exchange in stack.services.exchanges for run in exchange.runs]


# ---- the client leaves -------------------------------------------------------------------------------------


async def leave(stack: Stack, at: asyncio.Event, *, stream: bool = True, **options: Any) -> None:
    """Ask, and disconnect when ``at`` is set."""
    ask = asyncio.create_task((streamed if stream else whole)(stack, **options))
    await at.wait()
    ask.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ask


BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@BOTH
async def test_client_leaves_during_render(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        stack.render.hold.clear()
        await leave(stack, stack.render.waiting, stream=stream)
        await stack.settled()
        assert not stack.prefill[0].requests[GENERATE]


@BOTH
async def test_client_leaves_during_prefill_which_is_aborted(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        stack.prefill[0].hold.clear()
        await leave(stack, stack.prefill[0].waiting, stream=stream)
        await stack.settled()
        [leg] = stack.prefill[0].requests[GENERATE]
        assert stack.prefill[0].aborted == [f"generate-tokens-{leg['request_id']}"]
        assert not stack.prefill[0].held
        assert not stack.decode[0].requests[GENERATE]
        assert stack.services.metrics.unusable_prefills._value.get() == 0
        # An engine whose prefill has just ended answers an abort in the same way, and keeps the KV.
        assert stranded(stack) == {"prefill_aborted": 1}


@BOTH
async def test_a_client_that_leaves_before_its_prefill_is_sent_strands_nothing(
    launch: Launch, stream: bool
) -> None:
    settings = {"admission": {"prefill_per_member": 1}}
    async with launch(settings=settings) as stack:
        prefill = stack.prefill[0]
        prefill.hold.clear()
        running = asyncio.create_task(whole(stack))
        await prefill.waiting.wait()
        gate = stack.services.admission.gates["prefill"]
        queued = asyncio.create_task(leave(stack, enough := asyncio.Event(), stream=stream))
        await until(lambda: gate.waiting == 1)
        enough.set()
        await queued
        await until(lambda: gate.waiting == 0)
        prefill.hold.set()
        await running
        await stack.settled()
        assert len(prefill.requests[GENERATE]) == 1
        assert stranded(stack) == {}


@ASK
async def test_kv_that_is_pushed_finds_every_attempt_of_its_decode(launch: Launch, ask: Any) -> None:
    async with launch(decode=2) as stack:
        stack.prefill[0].pushes = True
        for tier in stack.decode:
            tier.faults[GENERATE].append(Status(503))
        with pytest.raises(openai.InternalServerError):
            await ask(stack)
        assert await ask(stack, n=1) == text_of(5)
        await stack.settled()
        legs = [leg["request_id"] for leg in stack.prefill[0].requests[GENERATE]]
        assert len(legs) == len(set(legs)) == 3
        assert sorted(leg["request_id"] for t in stack.decode for leg in t.requests[GENERATE]) == sorted(legs)


WATCHFUL = {"health": {"interval": 0.05}}


@ASK
async def test_decode_is_not_left_waiting_for_kv_that_a_dead_engine_was_to_push(
    launch: Launch, ask: Any
) -> None:
    async with launch(prefill=2, settings=WATCHFUL) as stack:
        for tier in stack.prefill:
            tier.pushes = True
        [decode] = stack.decode
        decode.faults[GENERATE].append(Stall())
        answer = asyncio.create_task(ask(stack))
        await until(lambda: bool(decode.requests[GENERATE]))
        [dead] = [tier for tier in stack.prefill if tier.requests[GENERATE]]
        await dead.kill()
        assert await answer == text_of(5)
        await stack.settled()
        first, second = decode.requests[GENERATE]
        assert decode.aborted == [f"generate-tokens-{first['request_id']}"]
        assert first["kv_transfer_params"]["remote_engine_id"] == dead.name
        assert second["kv_transfer_params"]["remote_engine_id"] != dead.name
        assert stranded(stack) == {"lease_retry": 1}


async def test_nor_sent_there_when_that_is_known(launch: Launch) -> None:
    async with launch(settings=WATCHFUL | {"admission": {"decode_per_member": 1}}) as stack:
        [prefill], [decode] = stack.prefill, stack.decode
        prefill.pushes = True
        decode.hold.clear()
        running = asyncio.create_task(whole(stack))
        await decode.waiting.wait()
        queued = asyncio.create_task(whole(stack))
        gate = stack.services.admission.gates["decode"]
        await until(lambda: gate.waiting == 1)
        await prefill.kill()
        for answer in (running, queued):
            with pytest.raises(openai.InternalServerError) as raised:
                await answer
            assert raised.value.status_code == 503
        await stack.settled()
        assert len(decode.requests[GENERATE]) == 1


async def test_a_decode_that_pulls_finds_out_by_itself(launch: Launch) -> None:
    async with launch(settings=WATCHFUL) as stack:
        [prefill], [decode] = stack.prefill, stack.decode
        decode.hold.clear()
        answer = asyncio.create_task(whole(stack))
        await decode.waiting.wait()
        await prefill.kill()
        await until(lambda: not stack.services.prefill_pool.available)
        decode.hold.set()
        assert await answer == text_of(5)
        await stack.settled()
        assert not decode.aborted


async def test_and_the_decode_that_only_frees_it(launch: Launch) -> None:
    async with launch() as stack:
        prefill = stack.prefill[0]
        prefill.pushes = prefill.deaf = True
        prefill.hold.clear()
        await leave(stack, prefill.waiting)
        await until(lambda: bool(prefill.aborted))
        prefill.hold.set()
        await stack.settled()
        assert not prefill.held
        assert stack.services.metrics.freed._value.get() == 1


@pytest.mark.parametrize("fault", [HalfClose(), Garbage()])
async def test_kv_of_a_prefill_whose_answer_is_lost_is_counted(launch: Launch, fault: Fault) -> None:
    async with launch() as stack:
        stack.prefill[0].faults[GENERATE].append(fault)
        assert await whole(stack) == text_of(5)
        await stack.settled()
        assert stranded(stack) == {"prefill_unanswered": 1}


@BOTH
async def test_a_prefill_that_ended_before_its_abort_is_freed(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        prefill = stack.prefill[0]
        prefill.deaf = True
        prefill.hold.clear()
        await leave(stack, prefill.waiting, stream=stream)
        await until(lambda: bool(prefill.aborted))
        prefill.hold.set()
        await stack.settled()
        assert prefill.prefilled.is_set()
        assert not prefill.held
        [freeing] = stack.decode[0].requests[GENERATE]
        assert freeing["sampling_params"]["max_tokens"] == 1
        assert stack.services.metrics.freed._value.get() == 1


async def test_a_prefill_that_ended_before_its_abort_is_counted_where_kv_is_left_to_the_lease(
    launch: Launch,
) -> None:
    async with launch(settings={"policy": {"held_kv": "lease"}}) as stack:
        prefill = stack.prefill[0]
        prefill.deaf = True
        prefill.hold.clear()
        await leave(stack, prefill.waiting)
        await until(lambda: bool(prefill.aborted))
        prefill.hold.set()
        await stack.settled()
        assert not stack.decode[0].requests[GENERATE]
        assert stack.services.metrics.stranded.labels("abort_too_late")._value.get() == 1


async def test_a_prefill_that_ends_after_the_requests_deadline_is_freed(launch: Launch) -> None:
    async with launch() as stack:
        prefill = stack.prefill[0]
        prefill.deaf = True
        prefill.hold.clear()
        with pytest.raises(openai.InternalServerError) as raised:
            await whole(stack, extra_headers={"X-Request-Timeout": "0.2"})
        assert raised.value.status_code == 504
        prefill.hold.set()
        await stack.settled()
        assert not prefill.held
        [freeing] = stack.decode[0].headers[GENERATE]
        assert float(freeing["x-request-timeout"]) > 0


LATE: dict[str, Any] = {"timeouts": {"prefill": 0.1, "cleanup": 5.0}, "policy": {"prefill_attempts": 1}}


@pytest.mark.parametrize("held_kv", ["free", "lease"])
async def test_a_prefill_that_answers_after_its_time_is_freed_or_counted(
    launch: Launch, held_kv: str
) -> None:
    policy = LATE["policy"] | {"held_kv": held_kv}
    async with launch(settings=LATE | {"policy": policy}) as stack:
        prefill, metrics = stack.prefill[0], stack.services.metrics
        prefill.deaf = True
        prefill.hold.clear()
        with pytest.raises(openai.InternalServerError) as raised:
            await whole(stack)
        assert raised.value.status_code == 504
        [leg] = prefill.requests[GENERATE]
        await until(lambda: prefill.aborted == [f"generate-tokens-{leg['request_id']}"])
        prefill.hold.set()
        await stack.settled()
        assert bool(prefill.held) == (held_kv == "lease")
        assert metrics.freed._value.get() == (held_kv == "free")
        assert metrics.stranded.labels("prefill_timeout")._value.get() == (held_kv == "lease")
        assert len(stack.decode[0].requests[GENERATE]) == (held_kv == "free")


async def test_late_kv_that_cannot_be_freed_is_counted(launch: Launch) -> None:
    async with launch(settings=LATE) as stack:
        prefill = stack.prefill[0]
        prefill.deaf = True
        prefill.hold.clear()
        stack.decode[0].faults[GENERATE].append(Status(500))
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        prefill.hold.set()
        await stack.settled()
        assert stack.services.metrics.stranded.labels("prefill_timeout")._value.get() == 1


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        (Answer({"kv_transfer_params": {"do_remote_prefill": True}}), 1),
        (Answer({"kv_transfer_params": None}), 0),
        (Answer(finish_reason="stop"), 1),
        (Expired(), 0),
    ],
    ids=["lacking", "none", "stopped", "expired"],
)
async def test_late_kv_that_no_decode_may_have_is_counted_while_it_is_held(
    launch: Launch, fault: Any, counted: int
) -> None:
    async with launch(settings=LATE) as stack:
        prefill, metrics = stack.prefill[0], stack.services.metrics
        prefill.deaf = True
        prefill.hold.clear()
        prefill.faults[GENERATE].append(fault)
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        prefill.hold.set()
        await stack.settled()
        assert stranded(stack) == ({"prefill_unusable": 1} if counted else {})
        assert metrics.unusable_prefills._value.get() == 1
        assert not stack.decode[0].requests[GENERATE]


async def test_a_late_prefill_that_hears_its_abort_may_have_ended_before(launch: Launch) -> None:
    async with launch(settings=LATE) as stack:
        prefill, metrics = stack.prefill[0], stack.services.metrics
        prefill.hold.clear()
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        await stack.settled()
        assert not prefill.held
        assert metrics.freed._value.get() == 0
        assert stranded(stack) == {"prefill_aborted": 1}


async def test_a_late_prefill_that_cannot_be_told_is_closed(launch: Launch) -> None:
    settings = LATE | {"timeouts": {"prefill": 0.1, "cleanup": 20.0}}
    async with launch(settings=settings) as stack:
        prefill = stack.prefill[0]
        prefill.faults[ABORT].append(Status(404))
        prefill.deaf = True
        prefill.hold.clear()
        with pytest.raises(openai.InternalServerError):
            await whole(stack)
        await stack.settled()
        await until(lambda: len(prefill.broken_off) == 1)
        assert stranded(stack) == {"prefill_unanswered": 1}


@ASK
async def test_every_hop_is_told_its_time(launch: Launch, ask: Any) -> None:
    async with launch() as stack:
        await ask(stack, extra_headers={"X-Request-Timeout": "7"})
        for tier, path in ((stack.render, RENDER), (stack.prefill[0], GENERATE), (stack.decode[0], GENERATE),
                           (stack.render, DERENDER)):  # fmt: skip
            assert tier.headers[path], path
            for headers in tier.headers[path]:
                assert 0 < float(headers["x-request-timeout"]) <= 7, path


async def test_an_engine_that_does_not_hear_aborts_sees_the_connection_close(launch: Launch) -> None:
    async with launch(settings={"timeouts": {"cleanup": 20.0}}) as stack:
        prefill = stack.prefill[0]
        prefill.faults[ABORT].append(Status(404))
        prefill.deaf = True
        prefill.hold.clear()
        await leave(stack, prefill.waiting)
        await stack.settled()
        await until(lambda: len(prefill.broken_off) == 1)
        assert stranded(stack) == {"prefill_unanswered": 1}


async def test_recalling_a_prefill_is_bounded(launch: Launch) -> None:
    async with launch(settings={"timeouts": {"cleanup": 0.1}}) as stack:
        stack.prefill[0].deaf = True
        stack.prefill[0].hold.clear()
        await leave(stack, stack.prefill[0].waiting)
        await stack.settled()
        await until(lambda: len(stack.prefill[0].broken_off) == 1)
        assert stranded(stack) == {"prefill_unanswered": 1}


DIRECT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prefill": 0}, {"max_tokens": 500}),
    ({}, {"max_tokens": 1, "n": 4}),
    ({"settings": {"policy": {"prefill_failure": "recompute", "prefill_attempts": 1}}}, {"max_tokens": 500}),
]


@pytest.mark.parametrize(("setup", "options"), DIRECT, ids=["three hops", "one token", "recomputed"])
@pytest.mark.parametrize("end", ["client", "deadline", "sibling"])
async def test_a_decode_that_pulls_no_kv_is_aborted_at_once(
    launch: Launch, setup: dict[str, Any], options: dict[str, Any], end: str
) -> None:
    settings = {"timeouts": {"cleanup": 20.0}}
    async with launch(**(setup | {"settings": settings | setup.get("settings", {})})) as stack:
        decode = stack.decode[0]
        for tier in stack.prefill:
            tier.faults[GENERATE].append(Status(503))
        decode.hold.clear()
        if end == "client":
            await leave(stack, decode.waiting, **options)
        else:
            headers = {"X-Request-Timeout": "0.3"} if end == "deadline" else {}
            ask = asyncio.create_task(whole(stack, extra_headers=headers, **options))
            await decode.waiting.wait()
            if end == "sibling":
                [exchange] = stack.services.exchanges
                await until(lambda: len(decode.requests[GENERATE]) == len(exchange.runs))
                exchange.fail(Unavailable("another choice failed"))
            with pytest.raises(openai.InternalServerError):
                await ask
        await stack.settled()
        legs = [f"generate-tokens-{leg['request_id']}" for leg in decode.requests[GENERATE]]
        assert sorted(decode.aborted) == sorted(legs)
        assert not stack.prefill or not stack.prefill[0].held


@BOTH
async def test_client_leaves_before_the_first_token_which_is_awaited_before_the_abort(
    launch: Launch, stream: bool
) -> None:
    async with launch(pace=0.01, settings={"timeouts": {"cleanup": 20.0}}) as stack:
        decode = stack.decode[0]
        decode.hold.clear()
        await leave(stack, decode.waiting, stream=stream, max_tokens=500)
        await until(lambda: states(stack) == ["draining"])
        assert decode.aborted == []
        assert stack.services.integrity.runs == 1
        decode.hold.set()
        await stack.settled()
        [leg] = decode.requests[GENERATE]
        assert decode.aborted == [f"generate-tokens-{leg['request_id']}"]
        assert decode.sent_tokens < 500
        assert not stack.prefill[0].held


async def test_draining_is_bounded(launch: Launch) -> None:
    async with launch(settings={"timeouts": {"cleanup": 0.1}}) as stack:
        stack.decode[0].hold.clear()
        await leave(stack, stack.decode[0].waiting)
        await stack.settled()
        assert len(stack.decode[0].aborted) == 1
        assert stack.services.metrics.stranded.labels("cleanup_timeout")._value.get() == 1


async def test_decode_can_be_aborted_at_once_when_engines_allow_it(launch: Launch) -> None:
    settings = {"policy": {"abort_decode": "at_once"}, "timeouts": {"cleanup": 20.0}}
    async with launch(settings=settings) as stack:
        stack.decode[0].hold.clear()
        await leave(stack, stack.decode[0].waiting)
        await stack.settled()
        assert len(stack.decode[0].aborted) == 1


@BOTH
async def test_client_leaves_during_decode(launch: Launch, stream: bool) -> None:
    async with launch(pace=0.01) as stack:
        enough = asyncio.Event()
        ask = asyncio.create_task(leave(stack, enough, stream=stream, max_tokens=100000))
        await until(lambda: stack.decode[0].sent_tokens >= 5)
        enough.set()
        await ask
        await stack.settled()
        assert len(stack.decode[0].aborted) == 1
        await until(lambda: len(stack.decode[0].broken_off) == 1)


@BOTH
async def test_client_leaves_during_derender(launch: Launch, stream: bool) -> None:
    async with launch() as stack:
        stack.render.faults[DERENDER] += [Stall()]
        await leave(stack, stack.render.waiting, stream=stream)
        await stack.settled()


async def test_a_client_that_stops_reading_stops_the_engine_and_may_leave(launch: Launch) -> None:
    limits = {"limits": {"pending_tokens": 4, "pending_frames": 2}}
    async with launch(settings=limits) as stack:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(stack.url.rpartition(":")[2]), limit=256
        )
        body = b'{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":1000000}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        await reader.read(10)
        # Once every buffer on the way is full, the run's pump waits for room in the outbox.
        [exchange] = stack.services.exchanges
        await until(lambda: "frames=2" in repr(exchange.outbox) and exchange.runs[0].pump.full)
        assert stack.decode[0].sent_tokens < 1000000
        writer.close()
        await stack.settled()
        assert len(stack.decode[0].aborted) == 1


# ---- leases ------------------------------------------------------------------------------------------------


async def test_kv_whose_lease_ended_while_decode_waited_is_not_used(launch: Launch) -> None:
    """Engines whose decode side does not renew the lease: the late answer would be another request's text."""
    lease = {"lease": {"engine_seconds": 0.3, "fraction": 0.5, "renewed_by_decode": False}}
    async with launch(decode=2, settings=lease) as stack:
        for tier in stack.decode:
            tier.faults[GENERATE] += [Stall()]
        with pytest.raises(openai.InternalServerError) as raised:
            await whole(stack)
        assert raised.value.status_code == 504
        assert sum(len(tier.requests[GENERATE]) for tier in stack.decode) == 2
        assert len(stack.prefill[0].requests[GENERATE]) == 2
        await stack.settled()


async def test_decode_that_renews_the_lease_may_wait(launch: Launch) -> None:
    lease = {"lease": {"engine_seconds": 0.1, "fraction": 0.5}}
    async with launch(settings=lease) as stack:
        stack.decode[0].hold.clear()
        ask = asyncio.create_task(whole(stack))
        await stack.decode[0].waiting.wait()
        await asyncio.sleep(0.2)
        stack.decode[0].hold.set()
        assert await ask == text_of(5)
        assert len(stack.prefill[0].requests[GENERATE]) == 1
        await stack.settled()


# ---- shutdown ----------------------------------------------------------------------------------------------


async def test_shutdown_lets_a_stream_finish(launch: Launch) -> None:
    async with launch(pace=0.02) as stack:
        received: list[str] = []
        ask = asyncio.create_task(streamed(stack, received, max_tokens=30))
        await until(lambda: bool(received))
        stack.server.should_exit = True
        assert await ask == text_of(30)


async def test_shutdown_ends_a_stream_that_outlasts_the_grace_with_an_error(launch: Launch) -> None:
    async with launch(pace=0.02, settings={"server": {"grace": 0.2}}) as stack:
        received: list[str] = []
        ask = asyncio.create_task(streamed(stack, received, max_tokens=100000))
        await until(lambda: bool(received))
        stack.server.should_exit = True
        with pytest.raises(openai.APIError, match="shutting down"):
            await ask
        await until(lambda: len(stack.decode[0].broken_off) == 1)
