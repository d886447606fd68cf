"""Laws of sampling."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.sampler import (
    Ending,
    SamplingSettings,
    SequenceSampler,
    ending,
    log_softmax,
    rank_tokens,
)

LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 3.0, 0.5], dtype=np.float32)


def draws(
    count: int, logits: np.ndarray = LOGITS, prompt: tuple[int, ...] = (), **settings: Any
) -> list[int]:
    sampler = SequenceSampler(SamplingSettings(**{"seed": 1, **settings}), prompt, 0, len(logits))
    return [sampler.sample(logits).token for _ in range(count)]


def test_temperature_zero_takes_the_most_likely() -> None:
    assert draws(3, temperature=0.0) == [4, 4, 4]


def test_frequencies_follow_the_softmax() -> None:
    counts = Counter(draws(4000, temperature=0.8))
    expected = np.exp(LOGITS / 0.8) / np.exp(LOGITS / 0.8).sum()
    for token, probability in enumerate(expected):
        assert abs(counts[token] / 4000 - probability) < 5 * math.sqrt(probability / 4000)


def test_a_seed_repeats_and_choices_differ() -> None:
    assert draws(20) == draws(20)
    other = SequenceSampler(SamplingSettings(seed=1), (), 1, 6)
    assert [other.sample(LOGITS).token for _ in range(20)] != draws(20)
    shifted = SequenceSampler(SamplingSettings(seed=2), (), 0, 6)
    first = SequenceSampler(SamplingSettings(seed=1), (), 1, 6)
    assert [shifted.sample(LOGITS).token for _ in range(9)] == [first.sample(LOGITS).token for _ in range(9)]


@pytest.mark.parametrize("seed", [-5, 2**63 - 1, 0])
def test_any_64_bit_seed_works(seed: int) -> None:
    assert draws(5, seed=seed) == draws(5, seed=seed)


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"top_k": 2}, {4, 0}),
        ({"top_p": 0.5}, {4}),
        ({"top_p": 0.7}, {4, 0}),
        ({"min_p": 0.3}, {4, 0}),
        ({"min_p": 1.0}, {4}),
        ({"top_k": 3, "top_p": 0.999}, {4, 0, 1}),
        ({"allowed_tokens": (2, 3)}, {2, 3}),
        ({"logit_bias": ((3, 100.0),)}, {3}),
        ({"logit_bias": ((4, -100.0), (0, -100.0))}, {1, 2, 3, 5}),
        ({"temperature": 0.001}, {4}),
    ],
)
def test_filters_leave_exactly_the_possible_tokens(settings: dict[str, Any], possible: set[int]) -> None:
    assert set(draws(400, **settings)) == possible


def test_a_presence_penalty_counts_output_only() -> None:
    assert draws(3, temperature=0.0, presence_penalty=1.9, prompt=(4,)) == [4, 0, 4]


def test_a_frequency_penalty_grows_with_use() -> None:
    assert draws(4, temperature=0.0, frequency_penalty=0.6) == [4, 4, 0, 4]


def test_a_repetition_penalty_counts_prompt_and_output_and_shrinks_either_sign() -> None:
    assert draws(1, temperature=0.0, repetition_penalty=2.0, prompt=(4,)) == [0]
    negative = np.array([-1.0, -1.5], dtype=np.float32)
    assert draws(2, negative, temperature=0.0, repetition_penalty=2.0) == [0, 1]


def test_stops_are_held_back_until_min_tokens() -> None:
    held = {"min_tokens": 2, "stop_tokens": frozenset({4}), "eos_tokens": frozenset({0})}
    assert draws(3, temperature=0.0, **held) == [1, 1, 4]


def test_endings() -> None:
    settings = SamplingSettings(
        max_tokens=3, min_tokens=2, stop_tokens=frozenset({7}), eos_tokens=frozenset({9})
    )
    assert ending(settings, 7, 1) is None
    assert ending(settings, 7, 2) == Ending("stop", 7)
    assert ending(settings, 9, 3) == Ending("stop", 9)
    assert ending(settings, 5, 2) is None
    assert ending(settings, 5, 3) == Ending("length")


def test_logprobs_are_those_of_the_raw_logits() -> None:
    settings = SamplingSettings(temperature=0.0, logprobs=2, logit_bias=((3, 100.0),))
    sampled = SequenceSampler(settings, (), 0, 6).sample(LOGITS)
    assert sampled.token == 3
    assert sampled.ranked is not None
    assert [(r.token, r.rank) for r in sampled.ranked] == [(3, 6), (4, 1)]
    assert sampled.ranked[0].logprob == pytest.approx(float(log_softmax(LOGITS)[3]))


def test_zero_logprobs_give_the_sampled_token_only() -> None:
    sampled = SequenceSampler(SamplingSettings(temperature=0.0, logprobs=0), (), 0, 6).sample(LOGITS)
    assert sampled.ranked is not None
    assert [(r.token, r.rank) for r in sampled.ranked] == [(4, 1)]


def test_minus_infinity_travels_as_a_number() -> None:
    logits = np.array([0.0, -np.inf], dtype=np.float32)
    assert [r.logprob for r in rank_tokens(log_softmax(logits), 1, 0)] == [-9999.0]


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=30), st.integers(0, 5), st.data())
def test_ranking_is_sorted_with_ties_by_id(values: list[int], count: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    logprobs = np.array(values, dtype=np.float32)
    ranked = rank_tokens(logprobs, token, count)
    assert ranked[0].token == token
    assert ranked[0].rank == sum(value >= values[token] for value in values)
    best = sorted(range(len(values)), key=lambda t: (-values[t], t))[:count]
    assert [r.token for r in ranked[1:]] == [t for t in best if t != token]
    assert all(best[r.rank - 1] == r.token for r in ranked[1:])


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=40),
    st.floats(0, 2),
    st.floats(0.01, 1),
    st.integers(0, 40),
    st.floats(0, 1),
)
def test_some_token_is_always_chosen(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits = np.array(values, dtype=np.float32)
    settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    assert all(0 <= token < len(values) for token in draws(3, logits, **settings))
