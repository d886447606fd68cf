"""A pair that keeps KV in groups of different lengths, whose decode engine keeps the blocks of a turn for the
next one, and computes anew what it cannot get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.completions import MODEL, Answer, ask, ask_all, body, client, whole
from tests.support.hybrid_model import WINDOW, write_hybrid_model
from tests.support.pd_stack import (
    FREE,
    IDLE,
    Stack,
    becomes_free,
    eventually,
    everything_becomes_free,
    generations,
    pd_stack,
    pulled,
    ready,
)
from tests.support.processes import orchestrator_server
from tests.support.prompts import distinct_prompts

LENGTHS = (20, 47, 129, 255, 640, 1500)
BLOCKS_KEPT = 3
"""Seconds that the decode engine keeps the blocks of a turn for the next one."""


@pytest.fixture(scope="module")
def hybrid_dir(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid_model(tmp_path_factory.mktemp("hybrid") / "model", smollm2_dir)


@pytest.fixture(scope="module")
def hybrid(hybrid_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    extra = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": BLOCKS_KEPT}
    with pd_stack(
        hybrid_dir,
        tmp_path_factory.mktemp("hybrid-pair"),
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def hybrid_prompts(smollm2_dir: Path) -> list[list[int]]:
    return distinct_prompts(smollm2_dir, LENGTHS, seed=13)


@pytest.fixture(scope="module")
def hybrid_answers(hybrid: Stack, hybrid_prompts: list[list[int]]) -> list[Answer]:
    return asyncio.run(ask_all(hybrid.together, hybrid_prompts, False))


async def test_kv_of_layers_with_a_sliding_window(
    hybrid: Stack, hybrid_prompts: list[list[int]], hybrid_answers: list[Answer]
) -> None:
    """They are a group of blocks of their own, of which only the window is moved."""
    assert max(LENGTHS) > 2 * WINDOW
    given: list[dict[str, Any]] = []

    def note(_request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        given.append(answer["kv_transfer_params"])
        return answer

    hybrid.prefill_box.change = note
    before = pulled(hybrid)
    assert await ask_all(hybrid.watched, hybrid_prompts, False) == hybrid_answers
    assert await ask_all(hybrid.apart, hybrid_prompts, True) == hybrid_answers
    assert pulled(hybrid) > before
    hybrid.prefill_box.reset()
    longest = max(given, key=lambda params: params["remote_num_tokens"])
    groups = sorted(len(blocks) for blocks in longest["remote_block_ids"])
    assert len(groups) >= 2
    assert groups[0] < groups[-1]
    assert len({tuple(answer.token_ids) for answer in hybrid_answers}) == len(LENGTHS)
    everything_becomes_free(hybrid)


async def test_three_turns_with_blocks_kept_for_the_next_one(hybrid: Stack) -> None:
    """What decode keeps it frees by itself when their time is over."""
    said: list[list[str]] = []
    for server in (hybrid.together, hybrid.apart):
        messages: list[dict[str, str]] = []
        async with client(server) as http:
            for question in ("Why do ships float? " * 20, "And stones?", "Thank you. Name one more."):
                messages.append({"role": "user", "content": question})
                chat = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 16}
                reply = await whole(http, chat, "/chat/completions")
                messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        said.append([message["content"] for message in messages])
    assert said[0] == said[1]
    everything_becomes_free(hybrid)


async def test_engines_of_different_models_are_kept_apart(
    hybrid: Stack, stack: Stack, hybrid_prompts: list[list[int]], tmp_path: Path
) -> None:
    """Their blocks are not alike, and decode would answer each request with a 500."""
    engines = hybrid.pair.prefill, stack.pair.decode
    members = ("--prefill", engines[0].url, "--decode", engines[1].url)
    mixed = orchestrator_server("--render", stack.render.url, *members, log_dir=tmp_path)
    mixed.ready_path = "/health"
    before = [generations(engine) for engine in engines]
    with mixed:
        async with client(mixed) as http:
            for stream in (False, True):
                reply = await http.post("/completions", json=body(hybrid_prompts[2], stream=stream))
                assert reply.status_code == 503, reply.text
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert not ready(mixed)
        assert "member kept out" in mixed.log()
    assert [generations(engine) for engine in engines] == before


async def test_kv_that_cannot_be_had_is_computed_anew(
    hybrid: Stack, hybrid_prompts: list[list[int]], hybrid_answers: list[Answer]
) -> None:
    """`kv_load_failure_policy` recompute: the prefill engine is dead when decode asks for its KV."""
    hybrid.prefill_box.hold()
    async with client(hybrid.watched) as http:
        asked = asyncio.create_task(ask(http, body(hybrid_prompts[4]), True))
        await eventually(lambda: hybrid.prefill_box.waiting == 1, "no answer is held")
        hybrid.pair.prefill.kill()
        hybrid.prefill_box.release()
        assert await asyncio.wait_for(asked, 120) == [hybrid_answers[4]]
    becomes_free((hybrid.watched, IDLE), (hybrid.pair.decode, FREE))
