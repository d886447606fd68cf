"""Marked text (`SpecialGuard`) to token IDs: marks become special tokens, all else only text."""

from __future__ import annotations

from dataclasses import dataclass

from render_tier.model.engines import ReferenceTokenizer
from render_tier.model.files import ModelLoadError
from render_tier.model.text_only import GuardedEngine
from render_tier.rendering.prompt_cache import PromptCache
from render_tier.rendering.special_guard import SpecialGuard
from render_tier.rendering.token_ids import Part, PromptIds, part_of


@dataclass(frozen=True)
class MarkedText:
    text: str
    mark: str


class GuardedEncoder:
    """Thread-safe."""

    def __init__(
        self,
        guard: SpecialGuard,
        engine: GuardedEngine,
        cache: PromptCache | None,
        tokenizer: ReferenceTokenizer,
    ) -> None:
        """``cache`` asks ``engine`` for what it does not hold. ``tokenizer``: the reference, asked which
        special tokens it puts around a text."""
        self.guard = guard
        self._engine = engine
        self._cache = cache
        self._around = _around(tokenizer)

    def ids(self, marked: MarkedText) -> PromptIds:
        """Raises BadRequest for text that can only be written with special tokens, and what engines raise."""
        parts: list[Part] = []
        for text, special in self.guard.split(marked.text, marked.mark):
            if special is not None:
                parts.append(part_of([special]))
            elif self._cache is not None:
                parts.extend(self._cache.ids(text).parts)
            else:
                parts.append(part_of(self._engine.ids(text)))
        return PromptIds(parts)

    def with_offsets(self, marked: MarkedText) -> tuple[list[int], list[tuple[int, int]]]:
        """IDs, and where in the plain text they stand. Raises as `ids`."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        at = 0
        for text, special in self.guard.split(marked.text, marked.mark):
            found, spans = (
                ([special], [(0, len(text))]) if special is not None else self._engine.with_offsets(text)
            )
            ids += found
            offsets += [(at + start, at + end) for start, end in spans]
            at += len(text)
        return ids, offsets

    def wrapped(self, ids: list[int]) -> list[int]:
        """With the special tokens that the tokenizer puts around a text."""
        before, after = self._around
        return [*before, *ids, *after]

    def wrapped_offsets(self, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        before, after = self._around
        return [(0, 0)] * len(before) + offsets + [(0, 0)] * len(after)


def _around(tokenizer: ReferenceTokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and behind a text."""
    inner = tokenizer.ids("a", add_special_tokens=False)
    outer = tokenizer.ids("a", add_special_tokens=True)
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return outer[:start], outer[start + len(inner) :]
    raise ModelLoadError("the tokenizer changes a text that it puts special tokens around")
