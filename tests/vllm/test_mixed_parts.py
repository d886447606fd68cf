"""Our parts beside vLLM's: render tier and orchestrator in front of a vLLM engine, on the same weights.

The answers are those of the embedded engine in the same place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import vllm
from tests.support.hop_programs import answer, run, streamed_answer
from tests.support.otlp import SERVER, receiving
from tests.support.pd_stack import eventually
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

HOPS = ("render", "decode", "derender")
CHAT: dict[str, Any] = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Why do ships float?"}],
    "temperature": 0,
    "max_completion_tokens": 32,
}


@pytest.fixture(scope="module")
def smollm2_render(smollm2_dir: Path, traces_port: int, server_logs: Path) -> Iterator[ServerProcess]:
    options = ("--served-model-name", "smollm2", *vllm.traced(traces_port))
    process = render_tier_server(smollm2_dir, *options, log_dir=server_logs, name="smollm2-render")
    process.env |= vllm.TRACING
    with process:
        yield process


def test_three_hops(
    smollm2_render: ServerProcess, vllm_engine: ServerProcess, embedded_engine: ServerProcess
) -> None:
    mine = ("--render", smollm2_render.url, "--engine", embedded_engine.url)
    theirs = ("--render", smollm2_render.url, "--engine", vllm_engine.url)
    [expected] = run("three_hop.py", CHAT, *mine)
    [completion] = run("three_hop.py", CHAT, *theirs)
    assert answer(completion) == answer(expected)
    assert streamed_answer(run("three_hop.py", CHAT, *theirs, "--stream")) == answer(expected)


@pytest.mark.parametrize("stop", [None, " the"], ids=["to the end", "stop string"])
def test_orchestrator(
    stop: str | None,
    smollm2_render: ServerProcess,
    vllm_engine: ServerProcess,
    embedded_engine: ServerProcess,
    server_logs: Path,
) -> None:
    """A stop string too, which a tokens-only vLLM engine refuses by itself."""
    chat = CHAT | ({"stop": [stop]} if stop else {})
    answers = []
    for engine in (embedded_engine, vllm_engine):
        options = ("--render", smollm2_render.url, "--decode", engine.url)
        with (
            orchestrator_server(*options, log_dir=server_logs) as orchestrator,
            httpx.Client(base_url=orchestrator.url, timeout=120, trust_env=False) as client,
        ):
            response = client.post("/v1/chat/completions", json=chat)
            assert response.status_code == 200, response.text
            answers.append(answer(response.json()))
    assert answers[1] == answers[0]
    assert (answers[0][1] == "stop") is (stop is not None)
    assert stop is None or stop not in answers[0][0]


async def test_an_engine_whose_weights_are_exchanged_drains_and_is_not_failed(
    smollm2_render: ServerProcess, vllm_engine: ServerProcess, tmp_path: Path
) -> None:
    config = tmp_path / "orchestrator.toml"
    config.write_text("[health]\ninterval = 0.1\ntimeout = 30.0\n")
    options = ("--config", config, "--render", smollm2_render.url, "--decode", vllm_engine.url)
    with orchestrator_server(*options, log_dir=tmp_path) as orchestrator:
        async with (
            httpx.AsyncClient(base_url=orchestrator.url, timeout=120, trust_env=False) as client,
            httpx.AsyncClient(base_url=vllm_engine.url, timeout=120, trust_env=False) as engine,
        ):

            async def ask() -> Any:
                response = await client.post("/v1/chat/completions", json=CHAT)
                assert response.status_code == 200, response.text
                return answer(response.json())

            async def becomes(**looks: Any) -> None:
                seen: dict[str, Any] = {}
                async with asyncio.timeout(60):
                    while not looks.items() <= seen.items():
                        [seen] = (await client.get("/status")).json()["pools"]["decode"]
                assert (seen["healthy"], seen["breaker"]) == (True, "closed")

            expected = await ask()
            async with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                pausing = asyncio.create_task(engine.post("/pause", params={"mode": "wait"}))
                assert [line async for line in lines if line][-1] == "data: [DONE]", "what runs is finished"
            assert (await pausing).status_code == 200
            await becomes(state="paused")
            waiting = asyncio.create_task(ask())
            await becomes(in_flight=1)
            assert not waiting.done()
            await engine.post("/resume")
            assert await waiting == expected
            await becomes(state="in")
            # A pause that gives up what runs: it is begun again, and waits.
            given_up = asyncio.create_task(ask())
            await becomes(in_flight=1)
            assert (await engine.post("/pause")).status_code == 200
            await becomes(state="paused")
            await engine.post("/resume")
            assert await given_up == expected
            await becomes(state="in")


async def test_an_engines_span_is_in_the_tree_of_its_request(
    smollm2_render: ServerProcess, vllm_engine: ServerProcess, traces_port: int, tmp_path: Path
) -> None:
    """From the client, whose context is all that is seen of it here, down to every hop."""
    trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with receiving(traces_port) as receiver:
        config = tmp_path / "orchestrator.toml"
        config.write_text(f'[tracing]\nendpoint = "{receiver.url}"\n')
        options = ("--config", config, "--render", smollm2_render.url, "--decode", vllm_engine.url)
        with orchestrator_server(*options, log_dir=tmp_path) as orchestrator:
            async with httpx.AsyncClient(base_url=orchestrator.url, timeout=120, trust_env=False) as client:
                headers = {"traceparent": f"00-{trace}-{caller}-01"}
                response = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert response.status_code == 200, response.text
            # What is left is sent when the process ends.
            await asyncio.to_thread(orchestrator.stop)
        await eventually(lambda: len(receiver.spans) >= 7, "spans are missing")
    assert {span.trace for span in receiver.spans} == {trace}
    [root] = receiver.named("POST /v1/chat/completions")
    hops = {name: span.id for name in HOPS for span in receiver.named(name)}
    assert {(span.parent, span.service) for span in receiver.spans if span.id in hops.values()} == {
        (root.id, "pd-orchestrator")
    }
    below = {(span.service, span.parent) for span in receiver.spans if span.parent in hops.values()}
    assert below == {
        ("render-tier", hops["render"]),
        ("vllm", hops["decode"]),
        ("render-tier", hops["derender"]),
    }
    [computed] = receiver.named("llm_request")
    assert (root.parent, computed.parent, computed.kind) == (caller, hops["decode"], SERVER)
    counted = response.json()["usage"]["completion_tokens"]
    assert computed.attributes["gen_ai.usage.completion_tokens"] == counted
