"""Selection by what engines say they hold, through the real shell and real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from pydantic import ValidationError

from orchestrator.core.kv_events import AllBlocksCleared, BlockStored, KvEvent
from orchestrator.kv_event_settings import KvEvents
from orchestrator.server.kv_indexes import KvIndexes
from orchestrator.server.prefix_caches import PrefixCaches
from orchestrator.settings import Settings
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import GENERATE, Tier, serving

SELECTION = {"prefix_block_tokens": 4}
TEXT = " ".join(["word"] * 16)
SUBSCRIBED, UNSUBSCRIBED = b"\x01", b"\x00"
"""What a publisher hears."""


class Engine:
    """The publishing side of one member."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._next = 0

    def publish(self, *events: KvEvent) -> None:
        number, self._next = self._next, self._next + 1
        payload = msgspec.msgpack.encode([0.0, list(events), 0])
        self.socket.send_multipart((b"", number.to_bytes(8, "big"), payload))


@contextlib.asynccontextmanager
async def reporting(stack: Stack, **settings: Any) -> AsyncIterator[list[Engine]]:
    """Each prefill member of the running stack publishes events; the ports are known only now."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    services = stack.services
    members = list(services.prefill_pool.members)
    engines = [Engine(context) for _ in members]
    endpoints = {member.url: engine.endpoint for member, engine in zip(members, engines, strict=True)}
    events = KvEvents.model_validate({"endpoints": endpoints} | settings)
    config = services.settings.model_copy(update={"kv_events": events})
    services.kv_indexes = KvIndexes(config, services.pools, services.metrics)
    services.prefix_caches = PrefixCaches(
        config.selection, {pool.role: pool for pool in services.pools}, services.kv_indexes, services.metrics
    )
    services.kv_indexes.start()
    try:
        for engine in engines:
            await until(lambda engine=engine: bool(engine.socket.poll(0)))
            engine.publish(AllBlocksCleared())
        await until(lambda: all(member.reports.trusted for member in members))  # type: ignore[union-attr]
        yield engines
    finally:
        await services.kv_indexes.close()
        for engine in engines:
            engine.socket.close(linger=0)
        context.destroy(linger=0)


async def ask(stack: Stack, content: str = TEXT) -> dict[str, Any]:
    """The decision about prefill."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3}
    response = await stack.http.post("/v1/chat/completions", json=body, headers={"X-PD-Explain": "1"})
    assert response.status_code == 200
    decision: dict[str, Any] = json.loads(response.headers["x-pd-decisions"])[1]
    assert decision["role"] == "prefill"
    return decision


def held(stack: Stack) -> BlockStored:
    """The prompt that has gone to prefill, as stored blocks."""
    [ids] = [r["token_ids"] for tier in stack.prefill for r in tier.requests[GENERATE][:1]]
    whole = len(ids) // 4 * 4
    return BlockStored(list(range(whole // 4)), None, ids[:whole], 4, "GPU")


async def test_the_member_that_says_it_holds_the_prompt_is_chosen(launch: Launch) -> None:
    async with launch(prefill=3, settings={"selection": SELECTION}) as stack:
        first = await ask(stack)
        assert {c["index"] for c in first["candidates"]} == {"approximate"}
        async with reporting(stack) as engines:
            members = list(stack.services.prefill_pool.members)
            other = next(i for i, member in enumerate(members) if member.url != first["winner"])
            engines[other].publish(held(stack))
            await until(lambda: len(members[other].reports.index) > 0)  # type: ignore[union-attr]
            decision = await ask(stack)
            assert decision["winner"] == members[other].url
            assert {c["index"] for c in decision["candidates"]} == {"exact"}
            assert max(c["cached_blocks"] for c in decision["candidates"]) > 2
            text = stack.services.metrics.exposition().decode()
            assert f'pd_kv_index_trusted{{member="{members[other].url}",role="prefill"}} 1.0' in text


async def test_a_member_whose_reports_are_not_true_is_scored_as_before(launch: Launch) -> None:
    """The scripted engine finds 3 cached tokens, whatever it has said."""
    async with launch(prefill=1, settings={"selection": SELECTION}) as stack:
        await ask(stack)
        async with reporting(stack, drift_window=4) as [engine]:
            [member] = stack.services.prefill_pool.members
            reports = member.reports
            assert reports is not None
            engine.publish(held(stack))
            await until(lambda: len(reports.index) > 0)
            for _ in range(2):
                assert (await ask(stack))["candidates"][0]["index"] == "exact"
            assert (await ask(stack))["candidates"][0]["index"] == "approximate"
            assert reports.losses == {"drift": 1}
            text = stack.services.metrics.exposition().decode()
            assert "pd_kv_index_losses_total{" in text
            assert 'reason="drift"' in text


async def test_members_of_any_source_are_followed_while_they_are_members(
    launch: Launch, tmp_path: Path
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = Engine(context)
    members = tmp_path / "members.json"
    settings = {
        "selection": SELECTION,
        "membership": {"file": members, "file_interval": 0.02},
        "kv_events": {"template": engine.endpoint.replace("127.0.0.1", "{host}")},
    }

    async def heard(what: bytes) -> None:
        await until(lambda: bool(engine.socket.poll(0)))
        assert engine.socket.recv() == what

    members.write_text("{}")
    async with serving(Tier("p9")) as tier, launch(prefill=0, settings=settings) as stack:
        pool = stack.services.prefill_pool
        for _ in range(2):
            members.write_text(json.dumps({"prefill": [tier.url]}))
            await heard(SUBSCRIBED)
            engine.publish(AllBlocksCleared())
            [member] = pool.members
            await until(lambda of=member: of.reports is not None and of.reports.trusted)
            await until(lambda: pool.ready)
            assert [c["index"] for c in (await ask(stack))["candidates"]] == ["exact"]
            members.write_text("{}")
            await heard(UNSUBSCRIBED)
            assert "pd_kv_index_trusted{" not in stack.services.metrics.exposition().decode()
            tier.requests.clear()
    engine.socket.close(linger=0)
    context.destroy(linger=0)


def test_what_would_be_ignored_is_refused() -> None:
    """Nobody asks the index of a role that is chosen by load, and a replay belongs to a subscription."""
    followed = {"members": {"decode": ["http://d"]}, "kv_events": {"endpoints": {"http://d/": "tcp://d:1"}}}
    with pytest.raises(ValidationError, match="nothing looks at what http://d/ holds"):
        Settings.model_validate(followed)
    Settings.model_validate(followed | {"selection": {"decode": "prefix_affinity"}})
    Settings.model_validate(followed | {"policy": {"skip_prefill_below_uncached_tokens": 64}})
    Settings.model_validate(followed | {"members": {"decode": ["http://d"], "prefill": ["http://d"]}})
    with pytest.raises(ValidationError, match=r"replay: http://d is not in kv_events\.endpoints"):
        Settings.model_validate(
            {"members": {"decode": ["http://d"]}, "kv_events": {"replay": {"http://d": "tcp://d:2"}}}
        )


def test_only_engines_can_be_followed() -> None:
    with pytest.raises(ValidationError, match="http://x is not one of"):
        Settings.model_validate({"kv_events": {"endpoints": {"http://x": "tcp://x:1"}}})
    with pytest.raises(ValidationError, match="pattern"):
        Settings.model_validate({"kv_events": {"endpoints": {"http://x": "http://x:1"}}})


def test_members_that_are_not_known_yet_can_be_named(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "membership": {"file": tmp_path / "members.json"},
            "kv_events": {
                "endpoints": {"http://10.0.0.1:80": "tcp://10.0.0.9:1"},
                "template": "tcp://{host}:5557",
                "replay_template": "tcp://{host}:5558",
            },
        }
    )
    events = settings.kv_events
    assert (events.endpoint_of("http://10.0.0.1:80"), events.replay_of("http://10.0.0.1:80")) == (
        "tcp://10.0.0.9:1",
        None,
    )
    assert events.endpoint_of("http://e1.svc:80") == "tcp://e1.svc:5557"
    assert events.replay_of("http://[fd00::1]:80") == "tcp://[fd00::1]:5558"


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ({"template": "tcp://10.0.0.1:5557"}, "pattern"),
        ({"replay_template": "tcp://{host}:5558"}, r"there is no kv_events\.template"),
    ],
)
def test_templates_that_say_nothing_are_refused(events: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Settings.model_validate({"kv_events": events})
    unread = {"selection": {"prefill": "round_robin"}, "kv_events": {"template": "tcp://{host}:5557"}}
    with pytest.raises(ValidationError, match="nothing looks at what engines hold"):
        Settings.model_validate(unread)
