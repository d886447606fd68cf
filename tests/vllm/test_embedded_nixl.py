"""KV of the embedded engine over NIXL, between real processes: the results are those over a socket."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import vllm
from tests.support.processes import ServerProcess, engine_server
from tests.support.stacks import metric

MODEL = "smollm2"
GENERATE = "/inference/v1/generate"
# Around a block (16), over a chunk of prefill (512).
LENGTHS = (1, 15, 16, 17, 100, 513)
KV_OF_A_TOKEN = 30 * 2 * 3 * 64 * 4
"""Layers, keys and values, heads, their size, float32."""
ENGINE = ("--served-model-name", MODEL, "--max-model-len", "1024", "--threads", "1")


@pytest.fixture(scope="module")
def with_nixl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that add vLLM's NIXL, and nothing else of its environment, to the engine's modules."""
    python = vllm.environment() / "bin" / "python"
    ask = "import sys, sysconfig; print(sysconfig.get_path('platlib')); print(*sys.version_info[:2])"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout
    packages, version = answer.splitlines()
    assert version == " ".join(map(str, sys.version_info[:2])), "vLLM's Python is another than the tests'"
    only = tmp_path_factory.mktemp("nixl")
    for entry in Path(packages).glob("nixl*"):
        (only / entry.name).symlink_to(entry)
    return {"PYTHONPATH": str(only)}


@dataclass
class Pair:
    prefill: ServerProcess
    decode: ServerProcess


@pytest.fixture(scope="module")
def pairs(
    smollm2_dir: Path, with_nixl: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Pair]]:
    """By how the blocks travel. One prefill engine serves both."""
    logs = tmp_path_factory.mktemp("engines")
    with ExitStack() as exits:

        def engine(name: str, role: str, transfer: str) -> ServerProcess:
            options = ("--model", smollm2_dir, *ENGINE, "--transfer", transfer)
            return exits.enter_context(
                engine_server(*options, role=role, name=name, log_dir=logs, env=with_nixl)
            )

        prefill = engine("prefill", "prefill", "nixl")
        yield {
            transfer: Pair(prefill, engine(f"decode-{transfer}", "decode", transfer))
            for transfer in ("socket", "nixl")
        }


def prompt(length: int) -> list[int]:
    return [1000 + (length * 7919 + i * 104_729) % 40_000 for i in range(length)]


def body(ids: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "logprobs": 1}
    return {"model": MODEL, "token_ids": ids, "sampling_params": sampling, **fields}


async def prefilled(http: httpx.AsyncClient, pair: Pair, ids: list[int]) -> dict[str, Any]:
    leg = body(ids, 1, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    reply = await http.post(pair.prefill.url + GENERATE, json=leg)
    assert reply.status_code == 200, reply.text
    params: dict[str, Any] = reply.json()["kv_transfer_params"]
    return params


async def choice(http: httpx.AsyncClient, pair: Pair, ids: list[int]) -> dict[str, Any]:
    """Token IDs and logprobs of prefill here and decode there."""
    params = await prefilled(http, pair, ids)
    reply = await http.post(pair.decode.url + GENERATE, json=body(ids, 12, kv_transfer_params=params))
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()["choices"][0]
    return answer


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=120, trust_env=False)


def idle(*engines: ServerProcess) -> bool:
    names = ("embedded:leases_held", "embedded:kv_blocks_used", "vllm:num_requests_running")
    return not any(metric(engine.url, name) for engine in engines for name in names)


async def becomes_idle(*engines: ServerProcess) -> None:
    """Within twice a lease: a client may have left before its request was sent at all."""
    for _ in range(600):
        if idle(*engines):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("something is held")


async def test_results_are_those_over_a_socket_and_the_bytes_came_over_nixl(pairs: dict[str, Pair]) -> None:
    prompts = [prompt(length) for length in LENGTHS]
    answers = {}
    async with client() as http:
        for transfer, pair in pairs.items():
            # Together, so that blocks of several prompts lie among each other.
            answers[transfer] = await asyncio.gather(*(choice(http, pair, ids) for ids in prompts))
    assert json.dumps(answers["nixl"]) == json.dumps(answers["socket"])
    over_nixl, over_socket = pairs["nixl"].decode.url, pairs["socket"].decode.url
    read = metric(over_nixl, "embedded:nixl_bytes_read_total")
    assert read == metric(over_nixl, "embedded:kv_bytes_received_total")
    assert read == metric(over_socket, "embedded:kv_bytes_received_total")
    assert read >= sum(LENGTHS) * KV_OF_A_TOKEN
    await becomes_idle(pairs["nixl"].prefill, *(pair.decode for pair in pairs.values()))


async def test_params_are_used_once(pairs: dict[str, Pair]) -> None:
    ids = prompt(40)
    async with client() as http:
        params = await prefilled(http, pairs["nixl"], ids)
        again = body(ids, 2, kv_transfer_params=params)
        url = pairs["nixl"].decode.url + GENERATE
        assert (await http.post(url, json=again)).status_code == 200
        refused = await http.post(url, json=again)
    assert refused.status_code == 409
    assert "(reused)" in refused.json()["error"]["message"]
    await becomes_idle(pairs["nixl"].prefill, pairs["nixl"].decode)


async def test_a_client_that_leaves_during_the_transfer_leaves_nothing_behind(pairs: dict[str, Pair]) -> None:
    pair = pairs["nixl"]
    async with client() as http:
        for pause in (0.0, 0.004, 0.012):
            ids = prompt(500)
            params = await prefilled(http, pair, ids)
            sent = http.post(pair.decode.url + GENERATE, json=body(ids, 200, kv_transfer_params=params))
            request = asyncio.ensure_future(sent)
            await asyncio.sleep(pause)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        ids = prompt(300)
        assert (await choice(http, pair, ids)) == (await choice(http, pairs["socket"], ids))
    await becomes_idle(pair.prefill, pair.decode)


async def test_a_prefill_engine_that_dies_is_an_error_and_the_next_one_is_found(
    pairs: dict[str, Pair], smollm2_dir: Path, with_nixl: dict[str, str], tmp_path: Path
) -> None:
    decode = pairs["nixl"].decode
    options = ("--model", smollm2_dir, *ENGINE, "--transfer", "nixl")
    mortal = engine_server(*options, role="prefill", name="mortal", log_dir=tmp_path, env=with_nixl)
    async with client() as http:
        with mortal:
            pair = Pair(mortal, decode)
            ids = prompt(200)
            expected = (await choice(http, pair, ids))["token_ids"]
            params = await prefilled(http, pair, ids)
            mortal.kill(signal.SIGKILL)
            failed = await http.post(decode.url + GENERATE, json=body(ids, 2, kv_transfer_params=params))
            assert failed.status_code == 503, failed.text
            mortal.start()
            assert (await choice(http, pair, ids))["token_ids"] == expected
    await becomes_idle(decode)
