"""A real vLLM for this folder: a tokens-only engine and a render server, started once when first used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import vllm
from tests.support.processes import ServerProcess, engine_server, render_tier_server


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
def vllm_engine(smollm2_dir: Path, server_logs: Path) -> Iterator[ServerProcess]:
    """SmolLM2 in vLLM, tokens-only, float32, served as `smollm2`."""
    process = vllm.start(vllm.engine(smollm2_dir, "smollm2", log_dir=server_logs))
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
