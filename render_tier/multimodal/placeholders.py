"""Where images stand in a prompt's token IDs: each image's one token becomes as many as it has embeddings.

The ranges are those of the tokens that embeddings replace, and nothing around them: an engine that is handed
a range without a mask takes all of it for embeddings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from render_tier.multimodal.families import Family, Replacement


class MisplacedImages(ValueError):
    """A prompt that does not have one place for each image; the message says how many there are."""


@dataclass(frozen=True)
class Range:
    offset: int
    length: int
    mask: tuple[bool, ...] | None = None
    """Which of them are replaced; None for all."""


def expand(
    ids: Sequence[int], family: Family, replacements: Sequence[Replacement]
) -> tuple[list[int], list[Range]]:
    """The prompt with its images' tokens, and where those are, in order.

    Raises MisplacedImages.
    """
    places = [position for position, token in enumerate(ids) if token == family.token_id]
    if len(places) != len(replacements):
        raise MisplacedImages(
            f"the prompt has {len(places)} places for images ({family.token}), but {len(replacements)} images"
        )
    expanded: list[int] = []
    ranges: list[Range] = []
    done = 0
    for place, replacement in zip(places, replacements, strict=True):
        _append(expanded, ids[done:place], family)
        # The first token may be joined with the last one before it; the embedded ones are never.
        from_end = len(replacement.ids) - replacement.first
        _append(expanded, replacement.ids, family)
        ranges.append(Range(len(expanded) - from_end, replacement.count, replacement.mask))
        done = place + 1
    _append(expanded, ids[done:], family)
    return expanded, ranges


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
