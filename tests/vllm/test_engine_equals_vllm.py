"""The embedded engine gives vLLM's own tokens: the same weights in float32, greedy, over the same wire."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.support.processes import ServerProcess
from tests.support.prompts import QUESTIONS, TEXTS

TOKENS = 64
CONCURRENCY = 8


@dataclass(frozen=True)
class Prompt:
    name: str
    token_ids: list[int]


def chat(*turns: tuple[str, str]) -> str:
    """SmolLM2's chat format."""
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return said + "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def prompts(smollm2_dir: Path) -> list[Prompt]:
    """57 prompts: chats of one and several turns, text, code, other scripts, one token, 1,300 tokens."""
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    system = ("system", "You are a helpful assistant.")
    texts = {f"chat-{i}": chat(system, ("user", question)) for i, question in enumerate(QUESTIONS)}
    texts |= {f"text-{i}": text for i, text in enumerate(TEXTS)}
    for i in range(5):
        history = [
            (role, text) for q in QUESTIONS[i : i + 3] for role, text in (("user", q), ("assistant", "Sure."))
        ]
        texts[f"turns-{i}"] = chat(system, *history, ("user", "And what did I ask you first?"))
    texts["long"] = chat(system, ("user", " ".join(QUESTIONS + TEXTS) * 3 + " What is this about?"))
    made = [Prompt(name, tokenizer.encode(text).ids) for name, text in texts.items()]
    draw = random.Random(7)
    made += [Prompt(f"one-token-{i}", [i]) for i in (1, 42, 30_000)]
    # Any IDs are a valid prompt: block boundaries of 16 are met exactly, by one less and by one more.
    made += [
        Prompt(f"noise-{length}", [draw.randrange(3, 49_000) for _ in range(length)])
        for length in (2, 15, 16, 17, 31, 32, 33, 128)
    ]
    return made


async def generate(url: str, prompts: list[Prompt], **sampling: Any) -> dict[str, dict[str, Any]]:
    """The choice that the engine gives for each prompt, `CONCURRENCY` at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)
    params = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True} | sampling

    async def one(prompt: Prompt) -> tuple[str, dict[str, Any]]:
        body = {"model": "smollm2", "token_ids": prompt.token_ids, "sampling_params": params}
        async with gate:
            response = await client.post("/inference/v1/generate", json=body)
        assert response.status_code == 200, (prompt.name, response.text)
        return prompt.name, response.json()["choices"][0]

    # vLLM closes idle connections after five seconds, so none is used twice.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as client:
        return dict(await asyncio.gather(*map(one, prompts)))


async def test_greedy_tokens_are_equal(
    prompts: list[Prompt], vllm_engine: ServerProcess, embedded_engine: ServerProcess
) -> None:
    assert len(prompts) >= 50
    theirs = await generate(vllm_engine.url, prompts)
    ours = await generate(embedded_engine.url, prompts)
    different = {
        name: next(i for i, pair in enumerate(zip(mine, reference, strict=True)) if pair[0] != pair[1])
        for name in theirs
        if (mine := ours[name]["token_ids"]) != (reference := theirs[name]["token_ids"])
    }
    assert not different, f"first differing position by prompt: {different}"
    assert all(len(choice["token_ids"]) == TOKENS for choice in ours.values())
    assert {choice["finish_reason"] for choice in ours.values()} == {"length"}


async def test_stops_at_eos_where_vllm_stops(
    prompts: list[Prompt], vllm_engine: ServerProcess, embedded_engine: ServerProcess
) -> None:
    chats = [prompt for prompt in prompts if prompt.name.startswith("chat-")]
    theirs = await generate(vllm_engine.url, chats, ignore_eos=False, stop_token_ids=[2])
    ours = await generate(embedded_engine.url, chats, ignore_eos=False, stop_token_ids=[2])
    assert {name: (c["token_ids"], c["finish_reason"]) for name, c in ours.items()} == {
        name: (c["token_ids"], c["finish_reason"]) for name, c in theirs.items()
    }
    assert "stop" in {choice["finish_reason"] for choice in theirs.values()}


async def test_logprobs_are_close(
    prompts: list[Prompt], vllm_engine: ServerProcess, embedded_engine: ServerProcess
) -> None:
    few = prompts[::5]
    theirs = await generate(vllm_engine.url, few, logprobs=5, max_tokens=16)
    ours = await generate(embedded_engine.url, few, logprobs=5, max_tokens=16)
    for name, reference in theirs.items():
        pairs = zip(ours[name]["logprobs"]["content"], reference["logprobs"]["content"], strict=True)
        for mine, expected in pairs:
            assert mine["token_id"] == expected["token_id"], name
            assert mine["logprob"] == pytest.approx(expected["logprob"], abs=2e-3), name
            assert mine["rank"] == expected["rank"], name
            assert [top["logprob"] for top in mine["top_logprobs"]] == pytest.approx(
                [top["logprob"] for top in expected["top_logprobs"]], abs=2e-3
            ), name
