"""Which frames of a video a model is shown, and what is said of them: the choice that vLLM's loaders make.

Sources of the rules: vLLM's loaders "qwen2_vl" and "qwen3_vl", which are those of transformers' processors,
and "opencv", which is that of all models without one of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Rule = Literal["from the start", "to the end", "evenly"]
"""Frames at equal steps: so many a second, in whole pairs from the first one or so that the last one is taken
too; or as many as may be, with the last one."""
FEWEST_FRAMES, MOST_FRAMES = 4, 768
"""Of a file, where so many a second are taken."""
PAIR = 2
USUAL_A_SECOND, MOST_A_SECOND = 2, 30
ASSUMED_RATE = 24.0
"""Frames a second, by the rule "to the end", where a file does not say."""
LISTED = "jpeg_sequence"
"""vLLM's name for a list of frames, where others name what read a file."""
_LANES = 8
"""Numbers of a vector in torch's `arange`, which is done in two vectors at a time."""


class UnknownRate(ValueError):
    """A file that does not say how many frames a second it has, of which the rule makes its choice."""


@dataclass(frozen=True)
class Sampling:
    rule: Rule
    file_rate: float | None = None
    """Frames a second to take of a file, or, evenly, the most; None for what the rule does by itself."""
    most_frames: int = 32
    """To take of a list, and, evenly, of a file."""
    listed_rate: float = 1.0
    """Frames a second that a list is of."""


@dataclass(frozen=True)
class Facts:
    """Of a video: the file's, and which frames have been taken. They are a part of its hash."""

    total: int
    """Frames of the file."""
    rate: float
    """Frames a second; 0 where the file does not say."""
    duration: float
    """Seconds."""
    origin: str
    """What read it."""
    indices: tuple[int, ...]
    """Of the frames that were taken."""
    sampled_again: bool
    """vLLM's mark for a video that a model's processor may choose frames of; those that all are taken of."""

    def described(self) -> dict[str, str | int | float | bool | list[int]]:
        """As vLLM hashes it."""
        return {
            "total_num_frames": self.total,
            "fps": self.rate,
            "duration": self.duration,
            "video_backend": self.origin,
            "frames_indices": list(self.indices),
            "do_sample_frames": self.sampled_again,
        }

    @property
    def of_list(self) -> bool:
        return self.origin == LISTED

    @property
    def taken_rate(self) -> float:
        """Frames a second of those that were taken; 0 where the file does not say."""
        return len(self.indices) / self.total * self.rate


def chosen(sampling: Sampling, total: int, rate: float) -> list[int]:
    """Indices of the frames to take of a file with so many; none of a file without a pair where pairs are
    taken. Raises UnknownRate."""
    if sampling.rule == "evenly":
        return _even(total, rate, sampling)
    a_second = min(sampling.file_rate or USUAL_A_SECOND, MOST_A_SECOND)
    if sampling.rule == "to the end":
        wanted = int(total / (rate or ASSUMED_RATE) * a_second)
        count = min(max(wanted, FEWEST_FRAMES), MOST_FRAMES, total)
        return [int(index) for index in np.linspace(0, total - 1, count).round()]
    if not rate:
        raise UnknownRate
    most = min(MOST_FRAMES, total) // PAIR * PAIR
    pairs = min(max(total / rate * a_second, FEWEST_FRAMES), most, total) // PAIR
    return _steps(total, int(pairs) * PAIR) if pairs else []


def _even(total: int, rate: float, sampling: Sampling) -> list[int]:
    count = min(sampling.most_frames, total)
    if sampling.file_rate is not None:
        seconds = total / rate if rate else 0.0
        count = max(1, math.floor(min(count, seconds * sampling.file_rate)))
    return [int(index) for index in np.linspace(0, total - 1, count, dtype=int)]


def _steps(total: int, count: int) -> list[int]:
    """``torch.arange(0, total, total / count).int()`` in torch's float32 on a CPU: what is rounded is the sum
    of a vector's first number, itself rounded, and a multiple of the step; but for a rest of less than two
    vectors it is the number alone."""
    step = total / count
    numbers = np.arange(math.ceil(total / step))
    vectors = np.where(numbers < len(numbers) // (2 * _LANES) * (2 * _LANES), numbers // _LANES * _LANES, 0)
    starts = (step * vectors).astype(np.float32).astype(np.float64)
    values = (starts + step * (numbers - vectors)).astype(np.float32)
    return sorted({min(int(value), total - 1) for value in values})


def file_facts(rule: Rule, total: int, rate: float, taken: list[int]) -> Facts:
    """Of a file of which the frames ``taken`` could be read."""
    duration = total / rate if rate > 0 else 0.0
    if rule == "to the end" and not rate > 0:
        rate = ASSUMED_RATE
    return Facts(total, rate, duration, "opencv", tuple(taken), len(taken) == total)


def list_facts(frames: int, rate: float) -> Facts:
    """Of a list of frames."""
    return Facts(frames, rate, frames / rate, LISTED, tuple(range(frames)), sampled_again=False)


def shown(rule: Rule, facts: Facts) -> tuple[int, ...]:
    """Indices of the taken frames that are left when transformers' processor has chosen too, as vLLM has it
    do by the second rule where all were taken."""
    if rule == "to the end" and facts.sampled_again:
        return tuple(chosen(Sampling(rule), facts.total, facts.rate))
    return facts.indices


def middle_times(indices: Sequence[int], rate: float, group: int) -> list[float]:
    """Seconds, of each ``group`` of frames, between its first and its last one; the last frame stands in for
    those that its group lacks."""
    times = [index / rate for index in (*indices, *[indices[-1]] * (-len(indices) % group))]
    return [(times[start] + times[start + group - 1]) / 2 for start in range(0, len(times), group)]
