"""A real vLLM for this folder: a tokens-only engine and a render server, started once when first used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import vllm
from tests.support.completions import MODEL, Answer, ask_all
from tests.support.pd_stack import Stack, pd_stack
from tests.support.processes import ServerProcess, engine_server, free_port, render_tier_server
from tests.support.prompts import distinct_prompts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything in this folder needs the vLLM environment."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def server_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def traces_port() -> int:
    """Where servers send spans of requests that their clients record."""
    return free_port()


@pytest.fixture(scope="session")
def kv_event_ports() -> tuple[int, int]:
    """Where the engine publishes what is in its cache, and where it replays that."""
    return free_port(), free_port()


@pytest.fixture(scope="session")
def vllm_engine(
    smollm2_dir: Path, traces_port: int, kv_event_ports: tuple[int, int], server_logs: Path
) -> Iterator[ServerProcess]:
    """SmolLM2 in vLLM, tokens-only, float32, served as `smollm2`; it can be paused."""
    events, replay = kv_event_ports
    options = (*vllm.traced(traces_port), *vllm.DEVELOPMENT_OPTIONS, *vllm.publishing(events, replay))
    process = vllm.engine(smollm2_dir, "smollm2", *options, log_dir=server_logs)
    process.env |= vllm.ENGINE_TRACING | vllm.DEVELOPMENT
    vllm.start(process)
    yield process
    process.stop()


@pytest.fixture(scope="session")
def embedded_engine(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    """SmolLM2 in the embedded engine, colocated, served as `smollm2`."""
    options = ("--model", smollm2_dir, "--served-model-name", "smollm2")
    with engine_server(*options, log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="session")
def vllm_render(qwen3_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    """Qwen3's tokenizer in `vllm launch render`, served as `qwen3`."""
    process = vllm.start(vllm.render(qwen3_dir, "qwen3", log_dir=server_logs))
    yield process
    process.stop()


@pytest.fixture(scope="session")
def render_tier(qwen3_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    """Qwen3's tokenizer in `render-tier serve` with the same flags, served as `qwen3`."""
    options = ("--served-model-name", "qwen3", *vllm.RENDER_OPTIONS)
    with render_tier_server(qwen3_dir, *options, log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="module")
def peer(vllm_render: ServerProcess) -> Iterator[httpx.Client]:
    """Of vLLM's."""
    with httpx.Client(base_url=vllm_render.url, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def ours(render_tier: ServerProcess) -> Iterator[httpx.Client]:
    """Of this project's, to be held against vLLM's."""
    with httpx.Client(base_url=render_tier.url, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def started_stack(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with pd_stack(smollm2_dir, tmp_path_factory.mktemp("pair")) as stack:
        yield stack


@pytest.fixture
def stack(started_stack: Stack) -> Stack:
    """SmolLM2 in a pair over NIXL behind our parts, all of it alive."""
    started_stack.revive()
    return started_stack


@pytest.fixture(scope="session")
def coupled(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    """SmolLM2 in one engine behind vLLM's own API, as those of the pair are started but for that."""
    process = vllm.start(vllm.coupled(smollm2_dir, MODEL, log_dir=server_logs))
    yield process
    process.stop()


@pytest.fixture(scope="session")
def prompts(smollm2_dir: Path) -> list[list[int]]:
    """Of 20 to 1,500 tokens."""
    return distinct_prompts(smollm2_dir)


@pytest.fixture(scope="session")
def colocated(started_stack: Stack, prompts: list[list[int]]) -> list[Answer]:
    """What the decode engine says to each prompt when it prefills itself."""
    started_stack.revive()
    return asyncio.run(ask_all(started_stack.together, prompts, stream=False))
