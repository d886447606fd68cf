"""Members that come, go, restart, change generation and disagree while requests are under way: through the
real shell and a real members file no request is lost or mixed, and each disagreement is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.core.parity import DECODE_AT_LEAST, EQUAL_ENGINES, EQUAL_IN_ROLE, EQUAL_RENDERS
from orchestrator.pool.member import Member
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import Tier, serving

FACTS: dict[str, Any] = {
    "model_config": {
        "revision": "1", "dtype": "bfloat16", "vocab_size": 1000, "max_model_len": 4096,
        "skip_tokenizer_init": True,
    },
    "cache_config": {"block_size": 16, "cache_dtype": "auto", "kv_cache_layout": "LBNHC"},
    "parallel_config": {"tensor_parallel_size": 2},
    "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
}  # fmt: skip

OTHERWISE: dict[str, tuple[str, str, Any]] = {
    "revision": ("model_config", "revision", "2"),
    "dtype": ("model_config", "dtype", "float16"),
    "vocab_size": ("model_config", "vocab_size", 999),
    "max_model_len": ("model_config", "max_model_len", 2048),
    "tokens_only": ("model_config", "skip_tokenizer_init", False),
    "structured_outputs": ("model_config", "skip_tokenizer_init", False),
    "block_size": ("cache_config", "block_size", 32),
    "kv_dtype": ("cache_config", "cache_dtype", "fp8"),
    "kv_layout": ("cache_config", "kv_cache_layout", "LBHNC"),
    "tensor_parallel": ("parallel_config", "tensor_parallel_size", 1),
    "connector": ("kv_transfer_config", "kv_connector", "NixlPushConnector"),
    "kv_role": ("kv_transfer_config", "kv_role", "kv_producer"),
}
"""By fact: where a decode engine's own differs from that of the others."""

TOLD_ELSEWHERE: dict[str, tuple[str, dict[str, Any]]] = {
    "model": ("/v1/models", {"data": [{"id": "m", "root": "m-instruct"}]}),
    "version": ("/version", {"version": "0.31.2"}),
}
"""The same for facts that are not in ``/server_info``."""

RENDERS_OTHERWISE: dict[str, tuple[str, dict[str, Any]]] = {
    "tokenizer": ("/ready", {"fingerprint": "f2", "vocab_size": 1000}),
    "vocab_size": ("/ready", {"fingerprint": "f1", "vocab_size": 1001}),
    "max_model_len": ("/v1/models", {"data": [{"id": "m", "max_model_len": 2048}]}),
}
"""The same for render tiers."""


def facts(field: str | None = None) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(FACTS))
    if field is not None:
        section, name, value = OTHERWISE[field]
        copy[section][name] = value
    return copy


class Cluster:
    """Engines that are written into the members file by ``members``, each as (tier, generation)."""

    def __init__(self, stack: Stack, path: Path, exits: AsyncExitStack) -> None:
        self.stack = stack
        self._path = path
        self._exits = exits
        self._count = 0

    async def tier(self, generation: str = "", tier_facts: dict[str, Any] | None = None) -> Tier:
        self._count += 1
        tier = Tier(f"engine{self._count}", pace=0.002)
        tier.generation, tier.facts = generation, facts() if tier_facts is None else tier_facts
        return await self._exits.enter_async_context(serving(tier))

    def write(
        self,
        prefill: list[Tier],
        decode: list[Tier],
        drained: tuple[Tier, ...] = (),
        *,
        render: list[Tier] | None = None,
        tokenizers: dict[str, str] | None = None,
    ) -> None:
        """``tokenizers``: declared, by the tier's name."""
        named = tokenizers or {}
        values = {
            role: [
                {"url": tier.url, "generation": tier.generation, "drain": tier in drained}
                | ({"declared": {"tokenizer": named[tier.name]}} if tier.name in named else {})
                for tier in tiers
            ]
            for role, tiers in (("prefill", prefill), ("decode", decode), ("render", render or []))
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(values))
        new.replace(self._path)

    def member(self, tier: Tier) -> Member | None:
        pools = self.stack.services.pools
        return next((m for pool in pools for m in pool.members if m.url == tier.url), None)

    async def idle(self, *tiers: Tier) -> None:
        members = [self.member(tier) for tier in tiers]
        await until(lambda: all(member is not None and member.idle for member in members))

    async def state(self, tier: Tier, state: str | None) -> None:
        """Wait until the tier's member is in ``state``; None: it is no member."""

        def there() -> bool:
            member = self.member(tier)
            return (None if member is None else member.state) == state

        await until(there)


@asynccontextmanager
async def cluster(launch: Launch, tmp_path: Path, **settings: Any) -> AsyncIterator[Cluster]:
    path = tmp_path / "members.json"
    path.write_text("{}")
    own = {
        "membership": {"file": str(path), "file_interval": 0.01},
        "health": {"interval": 0.02},
        **settings,
    }
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(launch(prefill=0, decode=0, settings=own))
        made = Cluster(stack, path, exits)
        yield made
        await stack.settled()


class Load:
    """Clients that ask all the time, streaming and not. Every answer must be the whole right one."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.answered = 0
        self._over = False

    async def client(self, number: int) -> None:
        while not self._over:
            body = {
                "messages": [{"role": "user", "content": " ".join(["xx"] * (3 + number))}],
                "max_tokens": 5,
                "n": 1 + number % 2,
                "stream": bool(number % 3),
            }
            reply = await self._stack.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert "error" not in reply.text, reply.text
            if body["stream"]:
                assert reply.text.count("t104 ") == body["n"], reply.text
                assert reply.text.endswith("data: [DONE]\n\n")
            else:
                texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
                assert texts == ["t100 t101 t102 t103 t104 "] * body["n"]  # type: ignore[operator]
            self.answered += 1

    async def some_more(self, count: int = 12) -> None:
        target = self.answered + count
        await until(lambda: self.answered >= target or any(task.done() for task in self._tasks))

    @asynccontextmanager
    async def running(self, clients: int = 6) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            self._tasks = [group.create_task(self.client(number)) for number in range(clients)]
            yield
            self._over = True


@contextmanager
def unmixed(*tiers: Tier) -> Iterator[None]:
    yield
    assert [violation for tier in tiers for violation in tier.violations] == []


async def test_members_come_and_go_under_load(launch: Launch, tmp_path: Path) -> None:
    async with cluster(launch, tmp_path) as fleet:
        p1, d1, p2, d2 = [await fleet.tier() for _ in range(4)]
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        load = Load(fleet.stack)
        with unmixed(p1, d1, p2, d2):
            async with load.running():
                await load.some_more()
                fleet.write([p1, p2], [d1, d2])
                await fleet.state(d2, "in")
                await load.some_more()
                fleet.write([p2], [d2], drained=(p1,))
                await fleet.state(d1, None)
                await load.some_more()
                fleet.write([p1, p2], [d1, d2], drained=(p2, d2))
                await fleet.state(d2, "draining")
                await fleet.idle(p2, d2)
                before = d2.sent_tokens
                await load.some_more()
                assert d2.sent_tokens == before, "it drains"
                assert p2.held == {}, "what it held has been pulled"


async def test_a_rolling_update_mixes_no_generations(launch: Launch, tmp_path: Path) -> None:
    """Old and new report nothing that would tell them apart."""
    async with cluster(launch, tmp_path) as fleet:
        old = [await fleet.tier("1") for _ in range(4)]
        new = [await fleet.tier("2") for _ in range(4)]
        load = Load(fleet.stack)
        fleet.write(old[:2], old[2:])
        await fleet.state(old[3], "in")
        with unmixed(*old, *new):
            async with load.running():
                await load.some_more()
                # One by one, and for a while only the new prefill or decode engines are there.
                fleet.write([*old[:2], new[0]], old[2:])
                await fleet.state(new[0], "in")
                await load.some_more()
                assert new[0].sent_tokens == 0
                assert not new[0].requests, "nobody could pull what it would hold"
                fleet.write([*old[:2], *new[:2]], [*old[2:], *new[2:]])
                await fleet.state(new[3], "in")
                await load.some_more()
                fleet.write([old[1], *new[:2]], [old[3], *new[2:]])
                await load.some_more()
                fleet.write(new[:2], new[2:])
                await fleet.state(old[3], None)
                await load.some_more()
        assert all(tier.requests for tier in (*old, *new))


async def test_another_engine_at_the_same_address_is_known_before_it_gets_work(
    launch: Launch, tmp_path: Path
) -> None:
    async with cluster(launch, tmp_path) as fleet:
        p1, d1, d2 = [await fleet.tier() for _ in range(3)]
        fleet.write([p1], [d1, d2])
        await fleet.state(d1, "in")
        await fleet.state(d2, "in")
        await fleet.state(p1, "in")
        load = Load(fleet.stack)
        with unmixed(p1, d1, d2):
            async with load.running():
                await load.some_more()
                fleet.write([p1], [d1, d2], drained=(d2,))
                await fleet.idle(d2)
                await d2.kill()
                await fleet.state(d2, "down")
                d2.facts = facts("revision")
                fleet.write([p1], [d1, d2])
                await d2.revive()
                await fleet.state(d2, "kept_out")
                before = d2.sent_tokens
                await load.some_more()
                assert d2.sent_tokens == before
                await d2.kill()
                await fleet.state(d2, "down")
                d2.facts = facts()
                await d2.revive()
                await fleet.state(d2, "in")
                await until(lambda: d2.sent_tokens > before)


async def test_a_configuration_changed_at_once_finishes_what_it_had_begun(
    launch: Launch, tmp_path: Path
) -> None:
    """All members are replaced by others of another kind, without generations: KV of the old prefill engine
    is pulled by the old decode engine, though both are members no more."""
    async with cluster(launch, tmp_path) as fleet:
        p1, d1 = await fleet.tier(), await fleet.tier()
        p2, d2 = [await fleet.tier(tier_facts=facts("revision")) for _ in range(2)]
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        with unmixed(p1, d1, p2, d2):
            p1.hold.clear()
            body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}
            asked = asyncio.create_task(fleet.stack.http.post("/v1/chat/completions", json=body))
            await p1.waiting.wait()
            fleet.write([p2], [d2])
            await fleet.state(d2, "in")
            await fleet.state(p2, "in")
            p1.hold.set()
            reply = await asked
            assert reply.status_code == 200
            assert d1.sent_tokens == 5
            assert p1.held == {}
            assert (await fleet.stack.http.post("/v1/chat/completions", json=body)).status_code == 200
            assert d2.sent_tokens == 5
        await until(lambda: not any(pool.leaving for pool in fleet.stack.services.pools))


async def test_kv_that_nobody_may_pull_any_more_is_made_anew(launch: Launch, tmp_path: Path) -> None:
    async with cluster(launch, tmp_path) as fleet:
        p1, d1 = await fleet.tier("1"), await fleet.tier("1")
        p2, d2 = await fleet.tier("2"), await fleet.tier("2")
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        p1.hold.clear()
        body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}
        asked = asyncio.create_task(fleet.stack.http.post("/v1/chat/completions", json=body))
        await p1.waiting.wait()
        await d1.kill()
        await fleet.state(d1, "down")
        fleet.write([p1, p2], [d2])
        await fleet.state(d2, "in")
        await fleet.state(p2, "in")
        await until(lambda: not fleet.stack.services.decode_pool.leaving)
        p1.hold.set()
        reply = await asked
        assert reply.status_code == 200, reply.text
        assert (d1.sent_tokens, d2.sent_tokens) == (0, 5)
        assert d2.violations == []
        p1.held.clear()


def report(tier: Tier) -> Tier:
    tier.reports = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": "m", "root": "m", "max_model_len": 4096}]},
        "/ready": {"fingerprint": "f1", "vocab_size": 1000},
    }
    return tier


async def test_members_that_disagree_in_any_field_are_kept_out_and_named_wherever_one_looks(
    launch: Launch, tmp_path: Path
) -> None:
    async with cluster(launch, tmp_path, parity={"recheck": 0.05}) as fleet:
        report(fleet.stack.render)
        p1, d1 = report(await fleet.tier()), report(await fleet.tier())
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        render = fleet.member(fleet.stack.render)
        await until(lambda: render is not None and render.capabilities.reported.tokenizer == "f1")
        aliens: dict[tuple[str, str], Tier] = {}
        for field in OTHERWISE:
            aliens["decode", field] = report(await fleet.tier(tier_facts=facts(field)))
        for field, (path, body) in TOLD_ELSEWHERE.items():
            aliens["decode", field] = report(await fleet.tier())
            aliens["decode", field].reports[path] = body
        declared = aliens["decode", "tokenizer"] = report(await fleet.tier())
        for field, (path, body) in RENDERS_OTHERWISE.items():
            aliens["render", field] = report(await fleet.tier(tier_facts={}))
            aliens["render", field].reports[path] = body
        assert {field for _, field in aliens} >= {*EQUAL_ENGINES, *EQUAL_IN_ROLE, *DECODE_AT_LEAST}
        assert {field for role, field in aliens if role == "render"} == {*EQUAL_RENDERS}
        load = Load(fleet.stack)
        with unmixed(p1, d1, *aliens.values()), structlog.testing.capture_logs() as lines:
            async with load.running(2):
                fleet.write(
                    [p1],
                    [d1, *(tier for (role, _), tier in aliens.items() if role == "decode")],
                    render=[tier for (role, _), tier in aliens.items() if role == "render"],
                    tokenizers={declared.name: "f2"},
                )
                for tier in aliens.values():
                    await fleet.state(tier, "kept_out")
                before = [len(tier.requests) for tier in aliens.values()]
                await load.some_more(4)
        assert [len(tier.requests) for tier in aliens.values()] == before
        logged = {line["member"]: line["differences"] for line in lines if line["event"] == "member kept out"}
        status = (await fleet.stack.http.get("/status")).json()
        families = text_string_to_metric_families((await fleet.stack.http.get("/metrics")).text)
        counted = {
            (sample.labels["member"], sample.labels["field"])
            for family in families
            for sample in family.samples
            if sample.name == "pd_member_difference" and sample.labels["keeps_out"] == "true"
        }
        printed = await asyncio.to_thread(CliRunner().invoke, app, ["status", "--url", fleet.stack.url])
        for (role, field), tier in aliens.items():
            [shown] = [member for member in status["pools"][role] if member["url"] == tier.url]
            assert shown["state"] == "kept_out"
            assert field in {each["field"] for each in shown["differences"] if each["keeps_out"]}
            assert shown["capabilities"][field]["verified"] is (tier is not declared)
            assert (tier.url, field) in counted
            assert any(said.startswith(f"{field} is ") for said in logged[tier.url])
            assert f"  {role} {tier.url} KEPT OUT: {field} is " in printed.output


async def test_a_prompt_that_no_engine_could_take_reaches_none(launch: Launch, tmp_path: Path) -> None:
    async with cluster(launch, tmp_path) as fleet:
        small = facts()
        small["model_config"] |= {"vocab_size": 10, "max_model_len": 8}
        p1, d1 = await fleet.tier(tier_facts=small), await fleet.tier(tier_facts=small)
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        for content, said in (
            ("x" * 10, "token id 10 is outside"),
            (" ".join("x" * 8), "context length is 8"),
        ):
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
            reply = await fleet.stack.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == 400
            assert said in reply.json()["error"]["message"]
        assert not p1.requests
        assert not d1.requests
        limits = (await fleet.stack.http.get("/status")).json()["engine_limits"]
        assert limits == {"vocab_size": 10, "max_model_len": 8, "capabilities": []}


async def test_decode_engines_that_can_constrain_are_given_such_requests(
    launch: Launch, tmp_path: Path
) -> None:
    async with cluster(launch, tmp_path) as fleet:
        can = facts()
        can["model_config"]["skip_tokenizer_init"] = False
        p1, d1 = await fleet.tier(), await fleet.tier(tier_facts=can)
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        body = {
            "messages": [{"role": "user", "content": "one"}],
            "max_tokens": 1,
            "structured_outputs": {"json": {}},
        }
        assert (await fleet.stack.http.post("/v1/chat/completions", json=body)).status_code == 200
        d1.facts["model_config"]["skip_tokenizer_init"] = True
        await d1.kill()
        await fleet.state(d1, "down")
        await d1.revive()
        await fleet.state(d1, "in")
        assert (await fleet.stack.http.post("/v1/chat/completions", json=body)).status_code == 400


async def test_an_empty_prefill_pool_is_an_error_and_not_another_mode(launch: Launch, tmp_path: Path) -> None:
    async with cluster(launch, tmp_path) as fleet:
        p1, d1 = await fleet.tier(), await fleet.tier()
        fleet.write([p1], [d1])
        await fleet.state(d1, "in")
        await fleet.state(p1, "in")
        fleet.write([], [d1])
        await fleet.state(p1, None)
        body = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 5}
        reply = await fleet.stack.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 503
        assert "prefill" in reply.json()["error"]["message"]
        assert (await fleet.stack.http.get("/ready")).json()["missing"] == ["prefill"]
