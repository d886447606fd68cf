"""Fixtures and rules for every test: blocking-call detection, model directories, hypothesis profiles."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, Phase, settings

pytest_plugins = [
    "tests.support.garbage",
    "tests.schedule",
    "tests.support.strict_run",
    "pytester",
]

ROOT = Path(__file__).resolve().parent.parent
MODELS = Path(os.environ.get("MODELS_DIR", ROOT / ".cache" / "models"))

# No deadlines: machines that run the tests are shared, and a timed assertion fails for reasons not ours.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI answers the same for the same commit, so a red run always points at the change under test. New examples
# are looked for while developing ("dev" draws anew each time) and on purpose with HYPOTHESIS_PROFILE=explore.
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile(
    "explore", parent=settings.get_profile("dev"), max_examples=2000, phases=tuple(Phase), print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def _allow_what_is_not_ours(bb: BlockBuster) -> None:
    """Blocking calls on the loop that are accepted, each with its reason."""
    # Looking for an import or a traceback's source line happens once per module or failure, not per request.
    for name in ("os.stat", "os.listdir", "io.BufferedReader.read", "io.TextIOWrapper.read"):
        bb.functions[name].can_block_in("<frozen importlib._bootstrap>", {"_find_and_load"})
        bb.functions[name].can_block_in("linecache.py", {"updatecache", "checkcache"})


@pytest.fixture(autouse=True)
def blocking_calls() -> Iterator[BlockBuster]:
    """Raise `BlockingError` when code of the two packages blocks a running event loop.

    Only calls with a frame of `render_tier` or `orchestrator` on the stack count: what a test itself does
    between awaits is its own affair. A test that needs an exception asks for this fixture and says why.
    """
    bb = BlockBuster(["render_tier", "orchestrator"])
    _allow_what_is_not_ours(bb)
    bb.activate()
    try:
        yield bb
    finally:
        bb.deactivate()


@pytest.fixture(scope="session", autouse=True)
def known_authorities() -> Iterator[None]:
    """All clients share one context with the world's certificates: to load them takes longer than a test."""
    make = ssl.create_default_context
    world = os.environ.get("SSL_CERT_FILE") or certifi.where()
    shared = make(cafile=world)

    def create(*purpose: ssl.Purpose, **options: Any) -> ssl.SSLContext:
        return shared if not purpose and options == {"cafile": world} else make(*purpose, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create)
        yield


def _model_directory(name: str) -> Path:
    directory = MODELS / name
    if not (directory / ".complete.json").is_file():
        pytest.fail(f"{directory} is not complete: run `make models`", pytrace=False)
    return directory


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    """A model directory with the real Qwen3 tokenizer (151k vocabulary, tools, reasoning) and no weights."""
    return _model_directory("qwen3")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct: tokenizer and real weights."""
    return _model_directory("smollm2")


@pytest.fixture(scope="session")
def llama3_1_dir() -> Path:
    """The Llama 3.1 tokenizer, no weights: the recordings of a model without parsers were made with it."""
    return _model_directory("llama3_1")


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    """The directory of a fetched model by its name (`scripts/fetch_models.py` lists them)."""
    return _model_directory
