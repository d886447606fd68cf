"""From logits to a token: penalties, biases, filters, seeded sampling, log-probabilities.

Order, as vLLM documents it: log-probabilities of the raw logits; allowed tokens; ``min_tokens``;
``logit_bias``; penalties; greedy choice if the temperature is 0; temperature; ``min_p``; ``top_k``;
``top_p``; sample. Each sequence has its own generator and counts, so what runs beside it does not
change what it samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.weights import FloatArray

GREEDY_BELOW: Final = 1e-5
MIN_TEMPERATURE: Final = 0.01
"""Temperatures between the two are raised to ``MIN_TEMPERATURE``: smaller ones overflow float32 logits."""

NEGATIVE_INFINITY_ON_WIRE: Final = -9999.0

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SamplingSettings:
    """Validated sampling parameters of one request. ``stop_tokens`` and ``eos_tokens`` end a sequence
    (``eos_tokens`` is empty under ``ignore_eos``); both are held back until ``min_tokens``."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    max_tokens: int = 16
    stop_tokens: frozenset[int] = frozenset()
    eos_tokens: frozenset[int] = frozenset()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True)
class RankedToken:
    """A token with its log-probability and rank (1 = most likely; ties share the worst rank among them)."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True)
class SampledToken:
    """``ranked`` holds the sampled token and then the most likely ones; None if not asked for."""

    token: int
    ranked: tuple[RankedToken, ...] | None = None


def log_softmax(logits: FloatArray) -> FloatArray:
    """Row-wise log-softmax in float32."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float32))
    return result


def on_wire(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEGATIVE_INFINITY_ON_WIRE


def rank_tokens(logprobs: FloatArray, token: int, count: int) -> tuple[RankedToken, ...]:
    """The token itself, then the ``count`` most likely ones (ties: lowest id first), the token once."""
    own = logprobs[token]
    ranked = [RankedToken(token, on_wire(float(own)), int(np.count_nonzero(logprobs >= own)))]
    if count:
        candidates = np.argpartition(-logprobs, min(count, len(logprobs) - 1))[:count]
        # argpartition picks freely among equal values at the edge: take all of them, then the lowest ids.
        edge = np.flatnonzero(logprobs >= logprobs[candidates].min())
        best = edge[np.lexsort((edge, -logprobs[edge]))][:count]
        ranked += [
            RankedToken(int(t), on_wire(float(logprobs[t])), rank)
            for rank, t in enumerate(best, start=1)
            if int(t) != token
        ]
    return tuple(ranked)


class SequenceSampler:
    """Sampling state of one sequence. ``index`` is the choice: with a seed, choice i uses ``seed + i``."""

    delay = 0.0

    def __init__(
        self, settings: SamplingSettings, prompt: Sequence[int], index: int, vocabulary: int
    ) -> None:
        self._settings = settings
        self._generated = 0
        seed = None if settings.seed is None else (settings.seed + index) % 2**64
        self._generator = np.random.default_rng(seed)
        self._held_back = np.array(sorted(settings.stop_tokens | settings.eos_tokens), dtype=np.int64)
        self._bias_at = np.array([token for token, _ in settings.logit_bias], dtype=np.int64)
        self._bias = np.array([bias for _, bias in settings.logit_bias], dtype=np.float32)
        self._forbidden: npt.NDArray[np.bool_] | None = None
        if settings.allowed_tokens is not None:
            self._forbidden = np.ones(vocabulary, dtype=np.bool_)
            self._forbidden[np.array(settings.allowed_tokens, dtype=np.int64)] = False
        self._counts: npt.NDArray[np.int32] | None = None
        if settings.presence_penalty or settings.frequency_penalty or settings.repetition_penalty != 1.0:
            self._counts = np.zeros(vocabulary, dtype=np.int32)
            self._seen = np.zeros(vocabulary, dtype=np.bool_)
            self._seen[np.array(prompt, dtype=np.int64)] = True

    def sample(self, logits: FloatArray) -> SampledToken:
        """Choose the next token from ``logits (vocab,)`` and record it. The argument is left unchanged."""
        settings = self._settings
        raw = logits
        logits = logits.copy()
        if self._forbidden is not None:
            logits[self._forbidden] = -np.inf
        if self._generated < settings.min_tokens and len(self._held_back):
            logits[self._held_back] = -np.inf
        if len(self._bias):
            logits[self._bias_at] += self._bias
        self._penalise(logits)
        token = int(np.argmax(logits)) if settings.greedy else self._draw(logits)
        self._record(token)
        if settings.logprobs is None:
            return SampledToken(token)
        count = settings.logprobs
        return SampledToken(token, rank_tokens(log_softmax(raw), token, count)[: max(count, 1)])

    def _penalise(self, logits: FloatArray) -> None:
        settings = self._settings
        if self._counts is None:
            return
        if settings.repetition_penalty != 1.0:
            seen = self._seen
            factor = np.float32(settings.repetition_penalty)
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        logits -= np.float32(settings.frequency_penalty) * self._counts
        logits -= np.float32(settings.presence_penalty) * (self._counts > 0)

    def _draw(self, logits: FloatArray) -> int:
        settings = self._settings
        scaled: DoubleArray = logits.astype(np.float64) / max(settings.temperature, MIN_TEMPERATURE)
        scaled -= scaled.max()
        kept = np.flatnonzero(scaled >= math.log(settings.min_p)) if settings.min_p > 0 else None
        if settings.top_k or settings.top_p < 1.0:
            if kept is None:
                kept = np.arange(len(scaled))
            if 0 < settings.top_k < len(kept):
                # As a threshold: tokens that tie with the k-th are kept.
                threshold = np.partition(scaled[kept], len(kept) - settings.top_k)[len(kept) - settings.top_k]
                kept = kept[scaled[kept] >= threshold]
            if settings.top_p < 1.0:
                kept = kept[np.argsort(-scaled[kept], kind="stable")]
                weights = np.exp(scaled[kept])
                before = np.cumsum(weights) - weights
                kept = kept[before < settings.top_p * weights.sum()]
        weights = np.exp(scaled if kept is None else scaled[kept])
        cumulative = np.cumsum(weights)
        choice = int(np.searchsorted(cumulative, self._generator.random() * cumulative[-1], side="right"))
        choice = min(choice, len(weights) - 1)
        return choice if kept is None else int(kept[choice])

    def _record(self, token: int) -> None:
        self._generated += 1
        if self._counts is not None:
            self._counts[token] += 1
            self._seen[token] = True


@dataclass(frozen=True)
class Ending:
    """Why a sequence ends: ``finish_reason`` and ``stop_reason`` as they travel."""

    finish_reason: str
    stop_reason: int | str | None = None


def ending(settings: SamplingSettings, token: int, generated: int) -> Ending | None:
    """Does the sequence end with its ``generated``-th token? A tokens-only engine names EOS by its id."""
    if generated >= settings.min_tokens and (token in settings.stop_tokens or token in settings.eos_tokens):
        return Ending("stop", token)
    return Ending("length") if generated >= settings.max_tokens else None
