"""Admission through the real shell: limits, queues, turns, refusals by cause, and held KV that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from orchestrator.server.intake import read_request
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import CHAT, GENERATE, Stall, Status

RENDER, DERENDER = f"{CHAT}/render", f"{CHAT}/derender"


def body(**options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 3} | options


async def ask(stack: Stack, tenant: str = "", **options: Any) -> httpx.Response:
    headers = {"X-Tenant-Id": tenant} if tenant else {}
    return await stack.http.post("/v1/chat/completions", json=body(**options), headers=headers)


def admission(**values: Any) -> dict[str, Any]:
    return {"admission": values}


def counted(counter: Any, *labels: str) -> float:
    value: float = counter.labels(*labels)._value.get()
    return value


def waiting(stack: Stack, gate: Any) -> int:
    return stack.services.admission.gates[gate].waiting


async def test_requests_beyond_the_limit_wait_and_are_answered(launch: Launch) -> None:
    async with launch(settings=admission(requests=2)) as stack:
        stack.render.hold.clear()
        asks = [asyncio.create_task(ask(stack)) for _ in range(6)]
        await until(lambda: waiting(stack, "requests") == 4 and len(stack.render.requests[RENDER]) == 2)
        stack.render.hold.set()
        assert [(await answer).status_code for answer in asks] == [200] * 6
        await stack.settled()


async def test_a_full_queue_is_503_and_a_full_share_of_it_429_each_with_retry_after(launch: Launch) -> None:
    settings = admission(requests=1, queue=2, queue_per_tenant=1, retry_after_unmeasured=7)
    async with launch(settings=settings) as stack:
        stack.render.hold.clear()
        asks = [asyncio.create_task(ask(stack, "a"))]
        await until(lambda: len(stack.render.requests[RENDER]) == 1)
        asks.append(asyncio.create_task(ask(stack, "a")))
        await until(lambda: waiting(stack, "requests") == 1)
        share = await ask(stack, "a")
        assert (share.status_code, share.headers["retry-after"]) == (429, "7")
        assert share.json()["error"]["type"] == "RateLimitError"
        asks.append(asyncio.create_task(ask(stack, "b")))
        await until(lambda: waiting(stack, "requests") == 2)
        full = await ask(stack, "c")
        assert (full.status_code, full.headers["retry-after"]) == (503, "7")
        assert counted(stack.services.metrics.refusals, "requests", "queue_full") == 1
        assert counted(stack.services.metrics.refusals, "requests", "tenant_queue_full") == 1
        stack.render.hold.set()
        assert [(await answer).status_code for answer in asks] == [200] * 3
        await stack.settled()


async def test_tenants_take_turns_and_a_tenants_urgent_work_goes_first(launch: Launch) -> None:
    async with launch(settings=admission(requests=1)) as stack:
        stack.render.hold.clear()
        order = [("a", 0, 1), ("a", 0, 2), ("a", 0, 3), ("a", -5, 4), ("b", 0, 5)]
        asks = []
        for count, (tenant, priority, seed) in enumerate(order):
            asks.append(asyncio.create_task(ask(stack, tenant, priority=priority, seed=seed)))
            await until(lambda: len(stack.render.requests[RENDER]) + waiting(stack, "requests") == count + 1)  # noqa: B023
        stack.render.hold.set()
        await asyncio.gather(*asks)
        assert [request["seed"] for request in stack.render.requests[RENDER]] == [1, 4, 5, 2, 3]


@pytest.mark.parametrize(
    ("header", "priority"), [("-2", -2), ("7", 7), ("x", 5), ("1.5", 5), ("", 5), ("9" * 10, 5)]
)
def test_a_priority_in_the_header_goes_before_the_bodys_unless_it_is_no_number(
    header: str, priority: int
) -> None:
    headers = {"content-type": "application/json", "x-vllm-priority": header}
    assert read_request("chat", headers, b'{"priority": 5}').who.priority == priority


async def test_waiting_too_long_is_503(launch: Launch) -> None:
    async with launch(settings=admission(requests=1, max_wait=0.05)) as stack:
        stack.render.hold.clear()
        first = asyncio.create_task(ask(stack))
        await stack.render.waiting.wait()
        late = await ask(stack)
        assert late.status_code == 503
        assert int(late.headers["retry-after"]) >= 1
        stack.render.hold.set()
        assert (await first).status_code == 200
        await stack.settled()


async def test_a_deadline_ends_the_wait(launch: Launch) -> None:
    async with launch(settings=admission(requests=1)) as stack:
        stack.render.hold.clear()
        first = asyncio.create_task(ask(stack))
        await stack.render.waiting.wait()
        assert (await ask(stack, timeout=0.05)).status_code == 504
        assert waiting(stack, "requests") == 0
        stack.render.hold.set()
        assert (await first).status_code == 200
        await stack.settled()


async def test_a_client_that_leaves_the_queue_leaves_nothing(launch: Launch) -> None:
    async with launch(settings=admission(requests=1)) as stack:
        stack.render.hold.clear()
        first = asyncio.create_task(ask(stack))
        await stack.render.waiting.wait()
        gone = asyncio.create_task(ask(stack))
        await until(lambda: waiting(stack, "requests") == 1)
        gone.cancel()
        await until(lambda: waiting(stack, "requests") == 0)
        stack.render.hold.set()
        assert (await first).status_code == 200
        await stack.settled()
        assert len(stack.render.requests[RENDER]) == 1


async def test_prefill_legs_are_bounded_per_member(launch: Launch) -> None:
    async with launch(prefill=2, settings=admission(prefill_per_member=1)) as stack:
        for tier in stack.prefill:
            tier.hold.clear()
        asks = [asyncio.create_task(ask(stack)) for _ in range(5)]
        await until(lambda: waiting(stack, "prefill") == 3)
        await until(lambda: all(len(tier.requests[GENERATE]) == 1 for tier in stack.prefill))
        for tier in stack.prefill:
            tier.hold.set()
        assert [(await answer).status_code for answer in asks] == [200] * 5
        await stack.settled()


async def test_a_member_that_dies_takes_its_places_with_it(launch: Launch) -> None:
    async with launch(decode=2, settings=admission(decode_per_member=3)) as stack:
        assert "0/6" in repr(stack.services.admission.gates["decode"])
        stack.decode[0].healthy = False
        await stack.services.check_health()
        assert "0/3" in repr(stack.services.admission.gates["decode"])


async def test_a_full_decode_queue_refuses_new_requests_before_any_work_is_done(launch: Launch) -> None:
    async with launch(settings=admission(decode_per_member=1, queue=1)) as stack:
        stack.decode[0].hold.clear()
        running = asyncio.create_task(ask(stack))
        await stack.decode[0].waiting.wait()
        held = asyncio.create_task(ask(stack))
        await until(lambda: waiting(stack, "decode") == 1)
        refused = await ask(stack)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert len(stack.render.requests[RENDER]) == 2
        stack.decode[0].hold.set()
        assert [(await answer).status_code for answer in (running, held)] == [200, 200]
        await stack.settled()


async def test_a_slow_derender_keeps_its_decode_place_and_new_requests_are_refused(
    launch: Launch,
) -> None:
    settings = admission(decode_per_member=1, queue=1) | {"limits": {"pending_tokens": 2}}
    async with launch(settings=settings) as stack:
        stack.render.faults[DERENDER].append(Stall())
        running = asyncio.create_task(ask(stack, stream=True, max_tokens=2000))
        await until(lambda: bool(stack.render.requests[DERENDER]))
        held = asyncio.create_task(ask(stack))
        await until(lambda: waiting(stack, "decode") == 1)
        refused = await ask(stack)
        assert refused.status_code == 503
        assert "decode" in refused.json()["error"]["message"]
        assert len(stack.render.requests[RENDER]) == 2
        running.cancel()
        assert (await held).status_code == 200
        await asyncio.wait([running])
        await stack.settled()


async def test_a_slow_prefill_refuses_new_requests_before_any_work_is_done(launch: Launch) -> None:
    async with launch(settings=admission(prefill_per_member=1, queue=1)) as stack:
        stack.prefill[0].hold.clear()
        running = asyncio.create_task(ask(stack))
        await stack.prefill[0].waiting.wait()
        held = asyncio.create_task(ask(stack))
        await until(lambda: waiting(stack, "prefill") == 1)
        refused = await ask(stack)
        assert refused.status_code == 503
        assert "prefill" in refused.json()["error"]["message"]
        assert len(stack.render.requests[RENDER]) == 2
        stack.prefill[0].hold.set()
        assert [(await answer).status_code for answer in (running, held)] == [200, 200]
        await stack.settled()


# ---- KV that is held while its run waits for decode --------------------------------------------------------


class Waiting:
    """One run decodes and stands still; another has been prefilled and waits for its place."""

    def __init__(self, stack: Stack, running: asyncio.Task[Any], held: asyncio.Task[Any]) -> None:
        self.stack = stack
        self.running = running
        self.held = held

    @classmethod
    async def begin(cls, stack: Stack, **options: Any) -> Waiting:
        stack.decode[0].hold.clear()
        running = asyncio.create_task(ask(stack))
        await stack.decode[0].waiting.wait()
        held = asyncio.create_task(ask(stack, **options))
        await until(lambda: stack.services.integrity.leases == 2)
        return cls(stack, running, held)

    async def end(self) -> None:
        self.stack.decode[0].hold.set()
        assert (await self.running).status_code == 200
        await self.stack.settled()


def one_at_a_time(held_kv: str, **more: Any) -> dict[str, Any]:
    lease = {"kv_bytes_per_token": 1000}
    return {"policy": {"held_kv": held_kv}, "lease": lease} | admission(decode_per_member=1) | more


async def test_a_client_that_leaves_while_its_kv_is_held_has_it_pulled_and_freed(launch: Launch) -> None:
    async with launch(settings=one_at_a_time("free")) as stack:
        scene = await Waiting.begin(stack)
        assert len(stack.prefill[0].held) == 1, "the running one has pulled its own"
        scene.held.cancel()
        await until(lambda: len(stack.decode[0].requests[GENERATE]) == 2)
        freeing = stack.decode[0].requests[GENERATE][1]
        assert freeing["sampling_params"]["max_tokens"] == 1
        assert freeing["kv_transfer_params"]["do_remote_prefill"] is True
        await scene.end()
        assert not stack.prefill[0].held
        assert stack.services.metrics.freed._value.get() == 1


async def test_or_it_is_left_to_the_lease_and_counted_in_bytes(launch: Launch) -> None:
    async with launch(settings=one_at_a_time("lease")) as stack:
        scene = await Waiting.begin(stack)
        scene.held.cancel()
        await until(lambda: stack.services.integrity.leases == 1)
        await scene.end()
        assert len(stack.decode[0].requests[GENERATE]) == 1
        assert len(stack.prefill[0].held) == 1
        metrics = stack.services.metrics
        assert counted(metrics.stranded, "client_gone") == 1
        assert counted(metrics.stranded_tokens, "client_gone") == 3
        assert counted(metrics.stranded_bytes, "client_gone") == 3000


@pytest.mark.parametrize("held_kv", ["free", "lease"])
async def test_a_deadline_while_kv_is_held_is_told_at_once(launch: Launch, held_kv: str) -> None:
    async with launch(settings=one_at_a_time(held_kv)) as stack:
        scene = await Waiting.begin(stack, timeout=0.3)
        assert (await scene.held).status_code == 504
        await scene.end()
        assert len(stack.prefill[0].held) == (held_kv == "lease")


@pytest.mark.parametrize("held_kv", ["free", "lease"])
async def test_no_decode_place_in_time_is_503_and_settles_the_held_kv(launch: Launch, held_kv: str) -> None:
    async with launch(
        settings=one_at_a_time(held_kv, admission={"decode_per_member": 1, "max_wait": 0.1})
    ) as stack:
        scene = await Waiting.begin(stack)
        late = await scene.held
        assert late.status_code == 503
        assert "retry-after" in late.headers
        await scene.end()
        assert len(stack.prefill[0].held) == (held_kv == "lease")


async def test_kv_whose_lease_ends_in_the_queue_is_prefilled_again_and_never_used(launch: Launch) -> None:
    lease = {"engine_seconds": 0.2, "fraction": 0.5, "kv_bytes_per_token": None}
    async with launch(settings=one_at_a_time("free", lease=lease)) as stack:
        scene = await Waiting.begin(stack)
        await until(lambda: len(stack.prefill[0].requests[GENERATE]) == 3)
        await until(lambda: scene.held.done() or stack.services.integrity.leases == 2)
        stack.decode[0].hold.set()
        answer = await scene.held
        assert answer.status_code in (200, 504), answer.text
        used = [leg["kv_transfer_params"]["remote_request_id"] for leg in stack.decode[0].requests[GENERATE]]
        stale = f"generate-tokens-{stack.prefill[0].requests[GENERATE][1]['request_id']}"
        assert stale not in used
        await scene.end()


async def test_freeing_that_decode_refuses_is_counted_as_stranded(launch: Launch) -> None:
    async with launch(settings=one_at_a_time("free")) as stack:
        scene = await Waiting.begin(stack)
        stack.decode[0].faults[GENERATE].append(Status(400))
        scene.held.cancel()
        await until(lambda: stack.services.integrity.leases == 1)
        await scene.end()
        assert counted(stack.services.metrics.stranded, "decode_failed") == 1


async def test_freeing_is_bounded(launch: Launch) -> None:
    async with launch(settings=one_at_a_time("free", timeouts={"cleanup": 0.1})) as stack:
        scene = await Waiting.begin(stack)
        scene.held.cancel()
        await until(lambda: stack.services.integrity.leases == 1)
        assert counted(stack.services.metrics.stranded, "cleanup_timeout") == 1
        await scene.end()
