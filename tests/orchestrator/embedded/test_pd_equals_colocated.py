"""Disaggregated output is colocated output, token for token, and nothing else changes it either."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from orchestrator.embedded import model_backend
from orchestrator.embedded.assembly import EngineOptions, build_surface
from orchestrator.embedded.engine import EngineSettings
from tests.orchestrator.embedded.engines import Client, prompt, serving


@pytest.fixture(scope="module")
def trio(tiny_model: Path) -> Iterator[tuple[Client, Client, Client]]:
    """Colocated, prefill and decode engines."""
    with (
        serving(tiny_model) as colocated,
        serving(tiny_model, role="prefill") as prefill,
        serving(tiny_model, role="decode") as decode,
    ):
        yield colocated, prefill, decode
        for engine in (colocated, prefill, decode):
            engine.idle()


@pytest.mark.parametrize("length", [1, 2, 16, 17, 128, 129, 130, 257, 2100])
def test_output_is_equal_for_every_prompt_length(trio: tuple[Client, Client, Client], length: int) -> None:
    colocated, prefill, decode = trio
    tokens = prompt(length, seed=length)
    expected = colocated.tokens(tokens, sampling={"max_tokens": 24})
    params = prefill.prefill(tokens)
    assert decode.tokens(tokens, sampling={"max_tokens": 24}, kv_transfer_params=params) == expected
    assert len(set(expected)) > 5, "a degenerate output would prove nothing"


def test_output_is_equal_over_turns(trio: tuple[Client, Client, Client]) -> None:
    colocated, prefill, decode = trio
    history = prompt(40, seed=5)
    for turn in range(4):
        expected = colocated.tokens(history)
        got = decode.tokens(history, kv_transfer_params=prefill.prefill(history))
        assert got == expected
        history += got + prompt(30, seed=turn)


def test_sampled_output_logprobs_and_choices_are_equal_too(trio: tuple[Client, Client, Client]) -> None:
    colocated, prefill, decode = trio
    tokens = prompt(60)
    sampling = {"temperature": 1.0, "seed": 11, "n": 3, "top_p": 0.95, "logprobs": 3}
    expected = colocated.generate(tokens, sampling=sampling)["choices"]
    params = prefill.prefill(tokens)
    assert decode.generate(tokens, sampling=sampling, kv_transfer_params=params)["choices"] == expected
    assert len({tuple(choice["token_ids"]) for choice in expected}) == 3


def test_params_may_travel_in_extra_args(trio: tuple[Client, Client, Client]) -> None:
    colocated, prefill, decode = trio
    tokens = prompt(33)
    extra = {"extra_args": {"kv_transfer_params": prefill.prefill(tokens)}}
    before = decode.running.engine.totals.transfers_received
    assert decode.tokens(tokens, sampling=extra) == colocated.tokens(tokens)
    assert decode.running.engine.totals.transfers_received == before + 1


def test_the_kv_really_moves(trio: tuple[Client, Client, Client]) -> None:
    _, prefill, decode = trio
    tokens = prompt(100)
    before = decode.http.get("/metrics").text
    decode.tokens(tokens, kv_transfer_params=prefill.prefill(tokens))
    after = decode.http.get("/metrics").text
    source = 'vllm:prompt_tokens_by_source_total{model_name="tiny",source="external_kv_transfer"}'
    assert value(after, source) - value(before, source) == 100
    blocks = decode.running.engine.backend.store.layout.bytes_of(7)
    name = 'embedded:kv_bytes_received_total{model_name="tiny"}'
    assert value(after, name) - value(before, name) == blocks


def value(exposition: str, series: str) -> float:
    return next(float(line.split()[-1]) for line in exposition.splitlines() if line.startswith(series))


def test_what_else_runs_does_not_change_a_sequence(trio: tuple[Client, Client, Client]) -> None:
    """The same requests one by one and all at once, prefill chunks and decode steps interleaved."""
    colocated, prefill, decode = trio
    prompts = [prompt(length, seed=length) for length in (1, 20, 150, 300, 40, 5, 77, 260)]
    logged = {"logprobs": 2, "max_tokens": 20}
    alone = [colocated.generate(tokens, sampling=logged)["choices"] for tokens in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(
            pool.map(lambda tokens: colocated.generate(tokens, sampling=logged)["choices"], prompts)
        )
        apart = list(
            pool.map(
                lambda tokens: decode.generate(
                    tokens, sampling=logged, kv_transfer_params=prefill.prefill(tokens)
                )["choices"],
                prompts,
            )
        )
    assert together == alone
    assert apart == alone


def test_other_chunk_boundaries_are_another_engine(
    tiny_model: Path, trio: tuple[Client, Client, Client]
) -> None:
    _, prefill, _ = trio
    with serving(tiny_model, settings=EngineSettings(prefill_chunk=64)) as other:
        tokens = prompt(20)
        response = other.post(tokens, kv_transfer_params=prefill.prefill(tokens))
        assert response.status_code == 409
        assert "(compatibility)" in response.json()["error"]["message"]
        other.idle()
    params = prefill.prefill(tokens)  # the refused lease is still held: free it by using it
    assert params["remote_request_id"]
    release(prefill)


def test_other_arithmetic_is_another_engine(
    tiny_model: Path, trio: tuple[Client, Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another BLAS, or another kernel of the same one, sums in another order."""
    _, prefill, _ = trio
    monkeypatch.setattr(model_backend, "describe_arithmetic", lambda blas: "another BLAS")
    with serving(tiny_model) as other:
        tokens = prompt(20)
        response = other.post(tokens, kv_transfer_params=prefill.prefill(tokens))
        assert response.status_code == 409
        assert "(compatibility)" in response.json()["error"]["message"]
        other.idle()
    release(prefill)


def test_the_number_of_threads_makes_no_other_engine(
    tiny_model: Path, trio: tuple[Client, Client, Client]
) -> None:
    colocated, prefill, _ = trio
    tokens = prompt(300, seed=3)
    with serving(tiny_model, threads=3) as other:
        got = other.generate(tokens, sampling={"logprobs": 2}, kv_transfer_params=prefill.prefill(tokens))
        other.idle()
    assert got["choices"] == colocated.generate(tokens, sampling={"logprobs": 2})["choices"]


async def test_the_backend_is_warm_before_the_engine_takes_requests(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = await asyncio.to_thread(build_surface, EngineOptions(model=tiny_model))
    backend, alive = surface.engine.backend, []
    warm_up = backend.warm_up

    def observed() -> None:
        warm_up()
        alive.append(surface.engine.alive)

    monkeypatch.setattr(backend, "warm_up", observed)
    await surface.start()
    try:
        assert alive == [False]
        assert surface.engine.alive
    finally:
        await surface.stop()


def release(prefill: Client) -> None:
    """End the leases that a test leaves on purpose, as their deadline would."""
    engine = prefill.running.engine
    with engine._changed:
        engine._scheduler.expire_leases(float("inf"))


@pytest.fixture(scope="module")
def real_pair(smollm2_dir: Path) -> Iterator[tuple[Client, Client]]:
    """Prefill and decode engines of the real model."""
    with (
        serving(smollm2_dir, role="prefill") as prefill,
        serving(smollm2_dir, role="decode") as decode,
    ):
        for engine in (prefill, decode):
            engine.http.timeout = httpx.Timeout(240)
        yield prefill, decode
        prefill.idle()
        decode.idle()


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("length", [30, 2048])
def test_real_weights(smollm2_dir: Path, real_pair: tuple[Client, Client], length: int) -> None:
    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    tokens = tokenizer.encode(text, add_special_tokens=False).ids[:length]
    assert len(tokens) == length
    prefill, decode = real_pair
    sampling = {"max_tokens": 6}
    expected = prefill.tokens(tokens, sampling=sampling)
    got = decode.tokens(tokens, sampling=sampling, kv_transfer_params=prefill.prefill(tokens))
    assert got == expected
