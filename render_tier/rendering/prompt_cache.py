"""Token IDs of the parts of earlier prompts, so that a conversation that grew costs only what is new.

A prompt is cut at special tokens (turn markers). Tokenizers cut there by themselves and encode what stands
between on its own, so the IDs of a whole are those of its parts, whatever the parts are beside. `cut_marks`
says for which tokens that holds; a tokenizer for which it does not has no cache.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from render_tier.model.engines import TokenEngine
from render_tier.rendering.token_ids import Part, PromptIds, part_of

BYTES_PER_PART = 200
"""The entry beside its texts: tuple, count, links."""
MAX_MARKS = 32
"""More marks make the search for them cost more than cutting saves."""


def cuts_are_independent(tokenizer_json: Mapping[str, Any]) -> bool:
    """Whether what stands between two special tokens is encoded on its own, whatever stands beside them."""
    added = tokenizer_json.get("added_tokens") or ()
    flags = ("lstrip", "rstrip", "single_word")
    looks_around = any(entry.get(flag) for entry in added for flag in flags if entry.get("content"))
    return not looks_around and not _depends_on_position(tokenizer_json)


def cut_marks(tokenizer_json: Mapping[str, Any], templates: Iterable[str | None]) -> tuple[str, ...]:
    """Added tokens of the chat templates (all special ones when there is no template) at which any text may
    be cut without changing its IDs; none when the tokenizer looks across such cuts.

    A mark must be matched wherever it stands: no other added token may contain it or begin before it and
    run into it. (One that it begins with is shorter and loses; one that begins inside it comes too late.)
    Tokens that are looked for in normalised text are looked for last, so nothing may touch those.
    """
    added = [entry for entry in tokenizer_json.get("added_tokens") or () if entry.get("content")]
    if not cuts_are_independent(tokenizer_json):
        return ()
    text = "".join(template for template in templates if template)
    normalizes = any(True for _ in _steps(tokenizer_json.get("normalizer")))
    marks = []
    for entry in added:
        mark, late = str(entry["content"]), bool(entry.get("normalized"))
        used = mark in text if text else entry.get("special")
        # Runs of white space are tokens of some vocabularies: they would cut a text into crumbs.
        if not used or mark.strip() != mark or (late and normalizes):
            continue
        others = [str(other["content"]) for other in added if other is not entry]
        if any(_runs_into(other, mark) or (late and _touches(mark, other)) for other in others):
            continue
        marks.append(mark)
    return tuple(sorted(marks, key=len, reverse=True)[:MAX_MARKS])


def _runs_into(other: str, mark: str) -> bool:
    """Whether ``other`` contains ``mark``, or can begin before it and end inside it."""
    return mark in other or any(mark.startswith(other[start:]) for start in range(1, len(other)))


def _touches(mark: str, other: str) -> bool:
    return other in mark or any(other.startswith(mark[start:]) for start in range(1, len(mark)))


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """A normaliser or pre-tokeniser as its single steps."""
    if step is None:
        return
    if step.get("type") == "Sequence":
        for inner in (*step.get("normalizers", ()), *step.get("pretokenizers", ())):
            yield from _steps(inner)
        return
    yield step


def _depends_on_position(tokenizer_json: Mapping[str, Any]) -> bool:
    """Whether some step treats the beginning of the whole text unlike that of a part. Such steps are known by
    their settings; a kind of step that is not known here counts as one."""
    steps = [*_steps(tokenizer_json.get("normalizer")), *_steps(tokenizer_json.get("pre_tokenizer"))]
    return any(step.get("type") not in INDEPENDENT_STEPS or step.get("add_prefix_space") for step in steps)


INDEPENDENT_STEPS = frozenset(
    {
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "StripAccents"),
        *("Split", "ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"),
    }
)
"""Steps that see one part at a time and treat them all alike."""


@dataclass(frozen=True)
class Lookup:
    """Characters of one prompt that were found and that were not, and the cache's size in bytes after it."""

    found: int
    missed: int
    size: int


class PromptCache:
    """Thread-safe. Least recently used parts go first when ``max_bytes`` are exceeded."""

    def __init__(self, engine: TokenEngine, marks: Sequence[str], max_bytes: int) -> None:
        """Without ``marks``, texts are kept whole."""
        self._engine = engine
        self._max_bytes = max_bytes
        self._cut: Callable[[str], list[str]] = lambda text: [text]
        if marks:
            self._cut = re.compile("(" + "|".join(map(re.escape, marks)) + ")").split
        self._parts: OrderedDict[str, Part] = OrderedDict()
        self._lock = threading.Lock()
        self._size = 0
        self.observer: Callable[[Lookup], None] = lambda _: None

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._size

    def ids(self, text: str) -> PromptIds:
        """The IDs that the engine gives for ``text`` without added special tokens."""
        texts = [part for part in self._cut(text) if part]
        with self._lock:
            parts: list[Part | None] = list(map(self._parts.get, texts))
            for part, known in zip(texts, parts, strict=True):
                if known is not None:
                    self._parts.move_to_end(part)
        missing = 0
        joined: list[Part] = []
        for part, known in zip(texts, parts, strict=True):
            if known is None:
                missing += len(part)
                known = part_of(self._engine.ids(part, add_special_tokens=False))
                self._keep(part, known)
            joined.append(known)
        self.observer(Lookup(len(text) - missing, missing, self._size))
        return PromptIds(joined)

    def _keep(self, text: str, part: Part) -> None:
        size = _size(text, part)
        if size > self._max_bytes // 4:
            return  # one prompt must not throw out everybody else's
        with self._lock:
            if text in self._parts:
                return
            self._parts[text] = part
            self._size += size
            while self._size > self._max_bytes:
                self._size -= _size(*self._parts.popitem(last=False))


def _size(text: str, part: Part) -> int:
    return sys.getsizeof(text) + len(part.text) + BYTES_PER_PART
