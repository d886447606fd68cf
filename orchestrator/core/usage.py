"""Token counts of an answer, each from the hop that knows it.

Prompt tokens come from render, cached tokens from the prefill leg (a decode engine counts the KV it pulled as
cached), completion tokens from what decode sent up to a stop string, reasoning tokens from derender. A prompt
counts once, however many choices are sampled from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class RunUsage:
    completion_tokens: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The OpenAI object; details that no hop reported are null."""
        cached, reasoning = self.cached_tokens, self.reasoning_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
            "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
        }


def total(
    prompt_tokens: list[int], cached_tokens: list[int | None], runs: list[RunUsage], *, reasoning: bool
) -> Usage:
    """Sum over the prompts (one entry each) and the runs. Reasoning is counted only where a parser counts
    it."""
    known = [count for count in cached_tokens if count is not None]
    return Usage(
        prompt_tokens=sum(prompt_tokens),
        completion_tokens=sum(run.completion_tokens for run in runs),
        cached_tokens=sum(known) if known else None,
        reasoning_tokens=sum(run.reasoning_tokens or 0 for run in runs) if reasoning else None,
    )
