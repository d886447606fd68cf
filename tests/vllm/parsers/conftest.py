"""The runner process shared by the parser tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import MODELS
from tests.vllm.parsers.runner import VllmRunner


@pytest.fixture(scope="session")
def vllm_parsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRunner]:
    """vLLM's own parsers, live in the vLLM environment."""
    with VllmRunner(MODELS, tmp_path_factory.mktemp("vllm_parsers")) as runner:
        yield runner
