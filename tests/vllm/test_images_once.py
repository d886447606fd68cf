"""A real vLLM is sent an image once: it takes what is only named from its cache, and gets it again when it
has lost it. Its answers are the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from orchestrator.demo import vllm_cpu
from tests.support import vllm
from tests.support.middlebox import Middlebox
from tests.support.pd_stack import FREE, IDLE, PATIENT, becomes_free, metric
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server
from tests.support.seeing_model import write_seeing_model
from tests.vllm.test_images import DECLARATIONS, NAME, chat, said, shown
from tests.vllm.torchvision_reference import torchvision_path


@dataclass(frozen=True)
class Stack:
    engine: ServerProcess
    way: Middlebox
    """To the engine."""
    orchestrator: ServerProcess


@pytest.fixture(scope="module")
def stack(qwen3_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    log_dir = tmp_path_factory.mktemp("once")
    model = write_seeing_model(qwen3_dir.parent, log_dir / NAME)
    options = [option for option in vllm_cpu.PAIR_OPTIONS if option != "--tokens-only"]
    engine = vllm.server(
        "vllm-once",
        *("serve", model, "--served-model-name", NAME, *options, "--enable-scale-out"),
        *("--skip-mm-profiling", *vllm.DEVELOPMENT_OPTIONS),
        log_dir=log_dir,
    )
    path = os.pathsep.join([str(DECLARATIONS), torchvision_path(), vllm.DEVELOPMENT["PYTHONPATH"]])
    engine.env |= vllm.DEVELOPMENT | {"PYTHONPATH": path}
    with ExitStack() as exits:
        exits.callback(engine.stop)
        vllm.start(engine)
        render = exits.enter_context(
            render_tier_server(model, "--served-model-name", NAME, "--dtype", "float32", log_dir=log_dir)
        )
        way = exits.enter_context(Middlebox(engine))
        config = log_dir / "orchestrator.json"
        config.write_text(json.dumps(PATIENT | {"policy": {"known_images": "named"}}))
        members = ("--render", render.url, "--decode", way.url, "--config", config)
        yield Stack(engine, way, exits.enter_context(orchestrator_server(*members, log_dir=log_dir)))


def test_an_image_is_sent_once_and_again_when_it_is_lost(stack: Stack) -> None:
    def sent() -> list[tuple[list[bool], int]]:
        """Which images of each leg had their pixels; its bytes."""
        legs = [
            ([data is not None for data in leg["features"]["kwargs_data"]["image"]], len(json.dumps(leg)))
            for leg in stack.way.requests
        ]
        stack.way.reset()
        return legs

    def resent() -> float:
        return metric(stack.orchestrator, "pd_media_resends_total")

    one, other = shown((448, 336), seed=31), shown((300, 200), seed=32)
    first, second = chat(*one), chat(*one, *other)
    expected = said(stack.engine, first), said(stack.engine, second)
    assert said(stack.orchestrator, first) == expected[0]
    [(pixels, whole)] = sent()
    assert (pixels, whole > 500_000) == ([True], True)
    assert said(stack.orchestrator, first) == expected[0]
    [(pixels, named)] = sent()
    assert (pixels, named < 10_000) == ([False], True)
    assert said(stack.orchestrator, second) == expected[1]
    assert [pixels for pixels, _ in sent()] == [[False, True]]
    assert resent() == 0
    httpx.post(f"{stack.engine.url}/reset_mm_cache", timeout=60, trust_env=False).raise_for_status()
    assert said(stack.orchestrator, second) == expected[1]
    assert [pixels for pixels, _ in sent()] == [[False, False], [True, True]]
    assert resent() == 1
    assert said(stack.orchestrator, second) == expected[1]
    assert [pixels for pixels, _ in sent()] == [[False, False]]
    becomes_free((stack.orchestrator, IDLE), (stack.engine, FREE))
