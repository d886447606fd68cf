"""What a Llama does to each number by itself or to each token's vector: norm, activation, rotation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.embedded.weights import FloatArray, ModelConfig

Turns = tuple[FloatArray, FloatArray]
"""Cosines and sines, shaped to broadcast."""


def rms_norm(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """Of ``(tokens, hidden)``."""
    variance: FloatArray = np.add.reduce(x * x, axis=-1, keepdims=True)
    variance *= np.float32(1.0 / x.shape[-1])
    variance += np.float32(eps)
    np.sqrt(variance, out=variance)
    normed: FloatArray = x / variance
    normed *= weight
    return normed


def swiglu(gate: FloatArray, up: FloatArray, scratch: FloatArray) -> FloatArray:
    """``silu(gate) * up``, in the memory of ``gate``. All of one shape; ``scratch`` is overwritten."""
    denominator = np.negative(gate, out=scratch)
    with np.errstate(over="ignore"):  # exp overflows to inf for very negative gates; the quotient is then 0
        np.exp(denominator, out=denominator)
    denominator += np.float32(1.0)
    gate /= denominator
    gate *= up
    return gate


def grouped(rows: FloatArray, lanes: int) -> FloatArray:
    """Rows ``(count, features)`` as columns ``(groups, features, lanes)``, filled up with zeros."""
    count, features = rows.shape
    groups = -(-count // lanes)
    filled = np.zeros((groups * lanes, features), dtype=np.float32)
    filled[:count] = rows
    return np.ascontiguousarray(filled.reshape(groups, lanes, features).transpose(0, 2, 1))


def ungrouped(columns: FloatArray, count: int) -> FloatArray:
    """The first ``count`` columns of ``(groups, features, lanes)`` as rows ``(count, features)``."""
    groups, features, lanes = columns.shape
    rows: FloatArray = columns.transpose(0, 2, 1).reshape(groups * lanes, features)[:count]
    return rows


class Rotary:
    """Rotary embedding of half-split pairs: of positions below ``max_positions``."""

    def __init__(self, config: ModelConfig, max_positions: int) -> None:
        self.positions = max_positions
        half = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
        frequencies = np.float32(1.0) / np.power(np.float32(config.rope_theta), half)
        angles = np.outer(np.arange(max_positions, dtype=np.float32), frequencies).astype(np.float64)
        self._cos: FloatArray = np.cos(angles).astype(np.float32)
        self._sin: FloatArray = np.sin(angles).astype(np.float32)

    def at(self, positions: npt.NDArray[np.intp]) -> Turns:
        """For ``turn``."""
        return self._cos[positions][:, None], self._sin[positions][:, None]

    def columns(self, start: int, end: int, lanes: int) -> Turns:
        """For ``turn_columns`` of tokens at positions ``start…end-1``: each ``(groups, head_dim / 2,
        lanes)``; columns beyond them become zero."""
        return grouped(self._cos[start:end], lanes), grouped(self._sin[start:end], lanes)

    @staticmethod
    def turn(x: FloatArray, turns: Turns) -> FloatArray:
        """``(tokens, heads, head_dim)``, each token at a position of its own."""
        cos, sin = turns
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def turn_columns(x: FloatArray, turns: Turns, scratch: FloatArray) -> None:
    """``(groups, heads, head_dim, lanes)`` in place; ``scratch (2, groups, heads, head_dim / 2, lanes)``."""
    cos, sin = (part[:, None] for part in turns)
    half = x.shape[2] // 2
    first, second = x[:, :, :half], x[:, :, half:]
    across = np.multiply(first, sin, out=scratch[0])
    first *= cos
    first -= np.multiply(second, sin, out=scratch[1])
    second *= cos
    second += across
