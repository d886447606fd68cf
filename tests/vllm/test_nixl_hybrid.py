"""A pair that keeps KV in groups of different lengths, whose decode engine keeps the blocks of a turn for the
next one, and computes anew what it cannot get. The last test kills the prefill engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.completions import MODEL, Answer, ask, ask_all, body, client, whole
from tests.support.hybrid_model import WINDOW, write_hybrid_model
from tests.support.middlebox import GENERATE
from tests.support.pd_stack import (
    FREE,
    IDLE,
    LEASE_OVER_WITHIN,
    PATIENT,
    Stack,
    becomes_free,
    eventually,
    generations,
    metric,
    pd_stack,
    pulled,
    ready,
    samples,
)
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server
from tests.support.prompts import distinct_prompts

LENGTHS = (20, 47, 129, 255, 640, 1500)
BLOCKS_KEPT = 20
"""Seconds that the decode engine keeps the blocks of a turn for the next one."""
THINKING = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template that opens the thinking for the model, and has none in the history."""


@pytest.fixture(scope="module")
def hybrid_dir(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid_model(tmp_path_factory.mktemp("hybrid") / "model", smollm2_dir)


@pytest.fixture(scope="module")
def hybrid(hybrid_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    extra = {
        "bidirectional_kv_xfer": True,
        "decoder_kv_blocks_ttl": BLOCKS_KEPT,
        "kv_recompute_threshold": 1,  # tokens; by default fewer than 64 are computed
    }
    with pd_stack(
        hybrid_dir,
        tmp_path_factory.mktemp("hybrid-pair"),
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    ) as stack:
        yield stack


@pytest.fixture(scope="module")
def reusing(
    hybrid: Stack, hybrid_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """An orchestrator that is told what the engines keep."""
    scratch = tmp_path_factory.mktemp("reusing")
    template, settings = scratch / "thinking.jinja", scratch / "settings.json"
    template.write_text(THINKING)
    settings.write_text(json.dumps(PATIENT | {"declared": {"engines": {"turn_seconds": BLOCKS_KEPT}}}))
    options = ("--served-model-name", MODEL, "--chat-template", template)
    members = ("--prefill", hybrid.prefill_box.url, "--decode", hybrid.decode_box.url, "--config", settings)
    with (
        render_tier_server(hybrid_dir, *options, log_dir=scratch) as render,
        orchestrator_server("--render", render.url, *members, log_dir=scratch) as orchestrator,
    ):
        yield orchestrator


def reuse(orchestrator: ServerProcess) -> dict[str, float]:
    """How often each result of a look for a kept turn has come up."""
    return {s.labels["result"]: s.value for s in samples(orchestrator, "pd_turn_reuse_total")}


def read_back(prefill: ServerProcess) -> float:
    """Prompt tokens that the prefill engine got from a decode engine."""
    return metric(prefill, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


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
    becomes_free((hybrid.apart, IDLE), (hybrid.watched, IDLE), (hybrid.pair.prefill, FREE))


async def test_three_turns_whose_kv_goes_back(
    reusing: ServerProcess, hybrid: Stack, smollm2_dir: Path
) -> None:
    """Prefill reads prompt and output of the turn before from the decode engine."""
    prefill = hybrid.pair.prefill
    turns = distinct_prompts(smollm2_dir, (300, 30, 90), seed=14)
    conversation: list[int] = []
    before, bytes_before = read_back(prefill), metric(prefill, "vllm:nixl_bytes_transferred_sum")
    async with client(reusing) as http, client(hybrid.together) as direct:
        for turn, stream, ends in zip(turns, (False, False, True), (None, 20, None), strict=True):
            conversation = conversation + turn
            sent = body(conversation, max_tokens=40)
            [expected] = await ask(direct, sent, False)
            if ends is not None:  # by a token of the model's own
                sent["stop_token_ids"] = [expected.token_ids[ends]]
                [expected] = await ask(direct, sent, False)
            [answer] = await ask(http, sent, stream)
            assert answer == expected
            conversation = conversation + answer.token_ids
    assert reuse(reusing) == {"nothing_held": 1, "used": 2}
    # At least the outputs, which prefill has never seen; it has the first turn in its own cache.
    assert read_back(prefill) - before >= 40 + 10
    assert metric(prefill, "vllm:nixl_bytes_transferred_sum") > bytes_before
    becomes_free((reusing, IDLE), (prefill, FREE))


async def test_a_template_that_drops_the_thinking(reusing: ServerProcess, hybrid: Stack) -> None:
    """The next prompt does not go on from what decode holds, and an engine that is given that all the same
    answers wrongly with status 200."""
    offered: list[dict[str, Any]] = []

    def note(_request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        offered.append(answer["kv_transfer_params"])
        return answer

    before = reuse(reusing)
    chat = {"model": MODEL, "temperature": 0, "max_tokens": 40, "return_token_ids": True}
    messages = [{"role": "user", "content": "Why do ships float? " * 20}]
    hybrid.decode_box.change = note
    async with client(reusing) as http:
        first = await whole(http, chat | {"messages": messages}, "/chat/completions")
        said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        messages += [said, {"role": "user", "content": "And stones?"}]
        second = await whole(http, chat | {"messages": messages}, "/chat/completions")
    hybrid.decode_box.reset()
    held, prompt = first["prompt_token_ids"], second["prompt_token_ids"]
    assert prompt[: len(held)] != held
    async with client(hybrid.together) as direct:
        [right] = await ask(direct, body(prompt, max_tokens=40), False)
    assert second["choices"][0]["token_ids"] == right.token_ids
    counted = {result: value - before.get(result, 0) for result, value in reuse(reusing).items()}
    assert counted["not_a_prefix"] == 1
    assert counted["used"] == 0

    # The salt: what prefill has cached of this prompt would hide it, and what it caches now is wrong.
    leg = {"token_ids": prompt, "cache_salt": "apart"}
    greedy = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=240, trust_env=False) as engines:
        one = {"sampling_params": greedy | {"max_tokens": 1}, "kv_transfer_params": offered[0]}
        prefilled = await whole(engines, leg | one, f"{hybrid.pair.prefill.url}{GENERATE}")
        rest = {"sampling_params": greedy, "kv_transfer_params": prefilled["kv_transfer_params"]}
        wrong = await whole(engines, leg | rest, f"{hybrid.pair.decode.url}{GENERATE}")
    assert wrong["choices"][0]["token_ids"] != right.token_ids


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
        assert "member kept out" in mixed.log(100_000)
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
    # What decode keeps for next turns it frees by itself, when their time is over.
    becomes_free((hybrid.watched, IDLE), (hybrid.pair.decode, FREE), within=LEASE_OVER_WITHIN)
