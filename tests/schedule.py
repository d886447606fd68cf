"""In what order test files begin, and which go to one worker of a parallel run.

A worker has its own servers and loaded models: files that need the same ones share them on one worker. What
takes longest begins first, so that the workers end together.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).resolve().parent
UNITS: tuple[tuple[str, ...], ...] = (
    # A vLLM pair, which the last of them leaves half dead.
    (
        *("vllm/test_nixl_pair", "vllm/test_nixl_pair_faults", "vllm/test_token_clients"),
        *("vllm/test_coupled", "vllm/test_clients", "vllm/test_clients_lm_eval"),
        *("vllm/test_nixl_hybrid", "vllm/test_nixl_pair_restarts"),
    ),
    ("vllm/test_render_corpus",),
    ("vllm/test_demo",),
    ("vllm/test_nixl_push",),
    ("vllm/test_images",),
    ("vllm/test_image_families_equal_vllm",),
    # First the events of an engine that has done nothing yet.
    ("vllm/test_kv_events", "vllm/test_engine_equals_vllm", "vllm/test_mixed_parts"),
    ("vllm/test_render_equals_vllm", "vllm/test_derender_equals_vllm"),
    # The servers of tests/e2e/conftest.py.
    ("e2e/test_four_hops", "e2e/test_hop_programs", "e2e/test_prometheus", "e2e/test_token_clients"),
    ("e2e/test_responses", "e2e/test_messages", "e2e/test_records", "e2e/test_exact_tokens"),
    ("render_tier/server/test_schema_fuzz",),
    ("e2e/test_render_deaths",),
    ("continuation/test_campaign",),
    # Both encoders of every real tokenizer.
    (
        *("render_tier/rendering/test_special_guard", "render_tier/rendering/test_prompt_cache"),
        "render_tier/model/test_engines",
    ),
    # Every tokenizer of the recorded outputs.
    (
        *("conformance/test_derender_paths", "conformance/test_messages_derender"),
        *("conformance/test_parser_corpus", "render_tier/core/test_family_laws"),
        *("render_tier/core/formats/test_every_family", "render_tier/core/test_closing_tags"),
        "families/test_generators",
    ),
    ("orchestrator/server/test_faults",),
    ("render_tier/server/test_processes",),
    ("orchestrator/embedded/test_pd_equals_colocated",),
    ("e2e/test_demo",),
)
"""Files of one worker, in their order. The other files come after them, in pytest's order."""
PLACES = {name: (unit, place) for unit, names in enumerate(UNITS) for place, name in enumerate(names)}


def placed(file: str) -> tuple[int, int]:
    """The unit of a file (a path below `tests`, without its suffix) and its place there; the last of all for
    one that has none."""
    return PLACES.get(file, (len(UNITS), 0))


class Units(LoadFileScheduling):
    """One after the other, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        unit, _ = placed(file.removeprefix("tests/").removesuffix(".py"))
        return file if unit == len(UNITS) else f"unit {unit}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait a third of their time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    config.option.loadscopereorder = False
    return Units(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: placed(_name(item.path)))


def _name(path: Path) -> str:
    return str(path.relative_to(TESTS).with_suffix("")) if path.is_relative_to(TESTS) else str(path)
