"""Where images and videos stand in a prompt's token IDs: the token of each becomes as many as it has
embeddings.

The ranges are those of the tokens that embeddings replace, and nothing around them: an engine that is handed
a range without a mask takes all of it for embeddings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from render_tier.multimodal.families import Family, Replacement


class MisplacedImages(ValueError):
    """A prompt that does not have one whole place for each image; the message says what it has."""


@dataclass(frozen=True)
class Range:
    offset: int
    length: int
    mask: tuple[bool, ...] | None = None
    """Which of them are replaced; None for all."""


def expand(
    ids: Sequence[int], family: Family, replacements: Sequence[Replacement], video_token: int | None = None
) -> tuple[list[int], list[Range]]:
    """The prompt with the tokens of its images and videos, and where those are: all runs of each of
    ``replacements``, in order.

    Images and videos are each in the order of their own places. ``video_token``: stands for a video. Raises
    MisplacedImages.
    """
    waiting = _by_place(ids, family.token_id, video_token, replacements)
    expanded: list[int] = []
    ranges: dict[int, list[Range]] = {}
    done = 0
    for place, token in enumerate(ids):
        if token not in waiting:
            continue
        number = waiting[token].popleft()
        replacement = replacements[number]
        _append(expanded, ids[done:place], family)
        # The first token may be joined with the last one before it; the embedded ones are never.
        _append(expanded, replacement.ids, family)
        start = len(expanded) - len(replacement.ids)
        ranges[number] = [
            Range(start + first, replacement.count, replacement.mask)
            for first in (replacement.first, *replacement.later)
        ]
        done = place + 1
    _append(expanded, ids[done:], family)
    return expanded, [run for number in range(len(replacements)) for run in ranges[number]]


def cut(
    ids: Sequence[int], ranges: Sequence[Range], replacements: Sequence[Replacement], kept: slice
) -> tuple[list[int], list[Range]]:
    """What ``kept`` leaves of what `expand` has made of ``replacements``. Raises MisplacedImages where one of
    them would not be whole."""
    start, stop, _ = kept.indices(len(ids))
    runs = iter(ranges)
    for replacement in replacements:
        first = next(runs).offset - replacement.first
        for _ in replacement.later:
            next(runs)
        end = first + len(replacement.ids)
        if first < start or end > stop:
            what = "a video" if replacement.of_video else "an image"
            raise MisplacedImages(f"{what}, which is at tokens {first} to {end} of {len(ids)}")
    return list(ids[kept]), [replace(where, offset=where.offset - start) for where in ranges]


def _by_place(
    ids: Sequence[int], image_token: int, video_token: int | None, replacements: Sequence[Replacement]
) -> dict[int, deque[int]]:
    """By the token that stands for them, the numbers of the replacements. A token of which there are none is
    no place."""
    waiting: dict[int, deque[int]] = {}
    for number, replacement in enumerate(replacements):
        token = video_token if replacement.of_video else image_token
        assert token is not None
        waiting.setdefault(token, deque()).append(number)
    for token, numbers in waiting.items():
        places, what = ids.count(token), "images" if token == image_token else "videos"
        if places != len(numbers):
            there = f"{places} place{'s' * (places != 1)} for {what}"
            raise MisplacedImages(f"the prompt has {there}, and needs {len(numbers)}")
    return waiting


def _append(expanded: list[int], more: Sequence[int], family: Family) -> None:
    """Add ``more``; where its first token and the last one there are one token to the tokenizer, as that."""
    if expanded and more and family.joined:
        joined = family.joined.get((expanded[-1], more[0]))
        if joined is not None:
            expanded[-1] = joined
            more = more[1:]
    expanded.extend(more)


def moved(ranges: Sequence[Range], before: Sequence[int], after: Sequence[int]) -> list[Range]:
    """The places in ``after`` of what is at ``ranges`` of ``before``: the same text, whose words are cut into
    tokens in another way. Of tokens that embeddings replace there are as many in both, in the same order.
    Raises MisplacedImages where there are not."""
    places: dict[int, tuple[list[int], list[int]]] = {}
    for token in {before[where.offset] for where in ranges}:
        old, new = ([place for place, each in enumerate(ids) if each == token] for ids in (before, after))
        if len(old) != len(new):
            raise MisplacedImages(
                f"token {token} stands {len(old)} times in the prompt, {len(new)} as continued"
            )
        places[token] = old, new
    found = []
    for where in ranges:
        old, new = places[before[where.offset]]
        offset = new[bisect_left(old, where.offset)]
        held = slice(where.offset, where.offset + where.length)
        if list(after[offset : offset + where.length]) != list(before[held]):
            raise MisplacedImages(
                f"the tokens of an image are parted in the prompt as continued, at {offset}"
            )
        found.append(replace(where, offset=offset))
    return found
