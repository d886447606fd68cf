"""All parts as real processes, each started once when a test first needs it; SmolLM2 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from tests.support.processes import ServerProcess, engine_server, orchestrator_server, render_tier_server
from tests.support.stacks import LEASES, Scripted, becomes_idle, metric

NAME = "smollm2"


@pytest.fixture(scope="session")
def server_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def render_tier(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    with render_tier_server(smollm2_dir, "--served-model-name", NAME, log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="session")
def colocated_engine(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    options = ("--model", smollm2_dir, "--served-model-name", NAME)
    with engine_server(*options, role="both", log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="session")
def prefill_engine(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    options = ("--model", smollm2_dir, "--served-model-name", NAME)
    with engine_server(*options, role="prefill", log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="session")
def decode_engine(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    options = ("--model", smollm2_dir, "--served-model-name", NAME)
    with engine_server(*options, role="decode", log_dir=server_logs) as process:
        yield process


@pytest.fixture(scope="session")
def orchestrator(
    render_tier: ServerProcess, prefill_engine: ServerProcess, decode_engine: ServerProcess, server_logs: Path
) -> Iterator[ServerProcess]:
    """P/D mode over the three fixtures above."""
    options = ("--render", render_tier.url, "--prefill", prefill_engine.url, "--decode", decode_engine.url)
    with orchestrator_server(*options, log_dir=server_logs) as process:
        yield process


@pytest.fixture
def client(orchestrator: ServerProcess, prefill_engine: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{orchestrator.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client
    becomes_idle(orchestrator)
    assert metric(prefill_engine.url, LEASES) == 0


@pytest.fixture(scope="module")
def scripted(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with ExitStack() as exits:
        yield Scripted(exits, qwen3_dir, tmp_path_factory.mktemp("scripted"), interval_ms=1)
