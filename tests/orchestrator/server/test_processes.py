"""``pd-orchestrator serve --workers``: a shared port, metrics of all, new settings without a lost request, an
orderly end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.orchestrator.faults import ABORT, CHAT, GENERATE, Tier, serving
from tests.support.api_keys import api_key, bearer
from tests.support.processes import ServerProcess, orchestrator_server

ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "a b c d"}],
    "max_tokens": 12,
    "stream": True,
}


@asynccontextmanager
async def workers(
    tmp_path: Path, count: int, pace: float, grace: float = 20.0, more: str = ""
) -> AsyncIterator[tuple[ServerProcess, Tier, Path]]:
    """The server, its decode engine, and its settings file, of which ``more`` is the end."""
    async with (
        serving(Tier("r")) as render,
        serving(Tier("p")) as prefill,
        serving(Tier("d", pace)) as decode,
    ):
        config = tmp_path / "settings.toml"
        config.write_text(
            f'[members]\nrender = ["{render.url}"]\nprefill = ["{prefill.url}"]\ndecode = ["{decode.url}"]\n'
            f"[server]\ngrace = {grace}\n[health]\ninterval = 0.2\n{more}"
        )
        server = orchestrator_server("--config", config, "--workers", str(count), log_dir=tmp_path)
        await asyncio.to_thread(server.start)
        try:
            yield server, decode, config
        finally:
            await asyncio.to_thread(server.stop)


async def ask(server: ServerProcess, **more: Any) -> str:
    """A new connection each time: the kernel picks the worker."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        response = await client.post(CHAT, json=ASK | more)
    assert response.status_code == 200, response.text
    return response.text


async def metrics(server: ServerProcess) -> str:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        return (await client.get("/metrics")).text


async def refusal(server: ServerProcess) -> None:
    """Wait until nobody listens any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # it was being closed
            continue
        writer.close()
        await asyncio.sleep(0.005)


def children(pid: int) -> set[int]:
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_metrics_are_those_of_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, 0.0) as (server, _decode, _config):
        # The first worker that is ready answers while the second one starts.
        while len(set(re.findall(r'pd_in_flight\{worker="(\d+)"', await metrics(server)))) < 2:
            pass
        pids = children(server.pid)
        assert len(pids) == 2
        for _ in range(12):
            assert "[DONE]" in await ask(server)
        text = await metrics(server)
    counts = re.findall(r'pd_requests_total\{endpoint="chat",outcome="ok",worker="(\d+)"\} (\S+)', text)
    assert {int(pid) for pid, _ in counts} <= pids
    assert sum(float(count) for _, count in counts) == 12
    idle = re.findall(r'pd_in_flight\{worker="(\d+)"\} 0\.0', text)
    assert {int(pid) for pid in idle} == pids
    assert len(re.findall(r"# TYPE pd_inter_token_seconds histogram", text)) == 1


async def test_new_settings_are_taken_while_streams_go_on(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, 0.1) as (server, decode, config):
        before = children(server.pid)
        running = [asyncio.create_task(ask(server)) for _ in range(4)]
        while len(decode.requests[GENERATE]) < 4:
            await asyncio.sleep(0.01)
        config.write_text(config.read_text() + "[limits]\nbody_bytes = 40\n")
        os.kill(server.pid, signal.SIGHUP)
        answers = await asyncio.gather(*running)
        assert all(answer.count("t1") == 12 and "[DONE]" in answer for answer in answers)
        while children(server.pid) & before or len(children(server.pid)) != 2:
            await asyncio.sleep(0.02)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
            while True:
                try:
                    refused = await client.post(CHAT, json=ASK)
                    break
                except httpx.TransportError:  # no worker has begun to listen
                    await asyncio.sleep(0.05)
        assert refused.status_code == 413


async def test_settings_that_cannot_be_used_leave_the_old_ones(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, 0.0) as (server, _decode, config):
        before = children(server.pid)
        config.write_text(config.read_text() + "[limits]\nno_such_key = 1\n")
        os.kill(server.pid, signal.SIGHUP)
        while "there is no such setting" not in server.whole_log():
            await asyncio.sleep(0.02)
        while children(server.pid) & before or len(children(server.pid)) != 2:
            await asyncio.sleep(0.02)
        assert "[DONE]" in await ask(server)


async def test_a_worker_that_dies_is_replaced_and_its_metrics_go(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, 0.0) as (server, _decode, _config):
        before = children(server.pid)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        while victim in children(server.pid) or len(children(server.pid)) != 2:
            await asyncio.sleep(0.02)
        assert "[DONE]" in await ask(server)
        assert f'worker="{victim}"' not in await metrics(server)


async def test_a_worker_that_exits_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """It leaves through the code that the master leaves by."""
    async with workers(tmp_path, 2, 0.0) as (server, _decode, _config):
        victim = min(children(server.pid))
        os.kill(victim, signal.SIGQUIT)
        while victim in children(server.pid) or len(children(server.pid)) != 2:
            await asyncio.sleep(0.02)
        pids = {str(pid) for pid in children(server.pid)}
        while set(re.findall(r'pd_in_flight\{worker="(\d+)"\}', await metrics(server))) != pids:
            await asyncio.sleep(0.05)
        assert {str(pid) for pid in children(server.pid)} == pids


@pytest.mark.parametrize("count", [1, 2])
async def test_sigterm_closes_the_port_and_gives_running_streams_their_grace(
    tmp_path: Path, count: int
) -> None:
    async with workers(tmp_path, count, 0.2, grace=8.0) as (server, decode, _config):
        running = [asyncio.create_task(ask(server)) for _ in range(4)]
        endless = asyncio.create_task(ask(server, max_tokens=100_000))
        while len(decode.requests[GENERATE]) < 5:
            await asyncio.sleep(0.01)
        pids = children(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        await refusal(server)
        assert not any(task.done() for task in running), "the port is closed at once"
        answers = await asyncio.gather(*running)
        assert all("[DONE]" in answer and "error" not in answer for answer in answers)
        last = await endless
        assert "the server is shutting down" in last
        assert last.endswith("data: [DONE]\n\n")
        assert server.process is not None
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert not any(alive(pid) for pid in pids)
    assert "Traceback" not in server.log(100_000)


async def statuses(server: ServerProcess, path: str, body: dict[str, Any] | None = None) -> set[int]:
    """Of answers on new connections, which all workers give."""
    found = set()
    for _ in range(8):
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
            reply = await (client.get(path) if body is None else client.post(path, json=body))
            found.add(reply.status_code)
    return found


async def test_a_drain_holds_for_all_workers(tmp_path: Path) -> None:
    async with (
        workers(tmp_path, 2, 0.0) as (server, _decode, _config),
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as operator,
    ):
        assert (await operator.post("/admin/drain")).json()["draining"] is True
        while await statuses(server, CHAT, ASK) != {503}:
            pass
        assert await statuses(server, "/ready") == {503}
        assert (await operator.post("/admin/undrain")).json()["draining"] is False
        while await statuses(server, CHAT, ASK) != {200}:
            pass


async def test_an_abort_reaches_the_worker_that_has_the_request(tmp_path: Path) -> None:
    asked = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 500}}
    async with workers(tmp_path, 2, 0.02) as (server, decode, _config):
        for i in range(4):
            async with (
                httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as one,
                httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as other,
            ):
                sent = decode.sent_tokens
                name = {"X-Request-Id": f"r{i}"}
                request = asyncio.create_task(one.post(GENERATE, json=asked, headers=name))
                while decode.sent_tokens == sent:
                    await asyncio.sleep(0.01)
                many = [f"generate-tokens-{'x' * 200}{j}" for j in range(600)]
                ids = [*many[:300], "x" * 70_000, f"generate-tokens-r{i}", *many[300:]]
                aborted = await other.post(ABORT, json={"request_ids": ids})
                assert aborted.status_code == 200
                answer = (await request).json()
            assert answer["choices"][0]["finish_reason"] == "abort"
        text = await metrics(server)
    served = re.findall(
        r'pd_requests_total\{endpoint="generate",outcome="client_gone",worker="(\d+)"\} (\S+)', text
    )
    assert sum(float(count) for _, count in served) == 4


async def test_a_keys_limits_hold_for_all_workers(tmp_path: Path) -> None:
    secret, entry = api_key("few", concurrent_requests=2)
    keys = f'[[auth.keys]]\nname = "few"\nhash = "{entry["hash"]}"\nconcurrent_requests = 2\n'
    async with workers(tmp_path, 2, 0.0, more=keys) as (server, decode, _config):
        decode.hold.clear()

        async def status() -> int:
            async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
                return (await client.post(CHAT, json=ASK, headers=bearer(secret))).status_code

        asked = [asyncio.create_task(status()) for _ in range(8)]
        while sum(each.done() for each in asked) < 6:
            await asyncio.sleep(0.01)
        assert [each.result() for each in asked if each.done()] == [429] * 6
        decode.hold.set()
        assert sorted(await asyncio.gather(*asked)) == [200] * 2 + [429] * 6
