"""A tiny random Llama for the engine's tests: every code path of the real one at a thousandth of its cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.embedded.engines import EOS, VOCABULARY
from tests.orchestrator.embedded.random_llama import write_random_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, untied head, fixed seed."""
    return write_random_llama(tmp_path_factory.mktemp("tiny"), vocabulary=VOCABULARY, eos=[EOS])
