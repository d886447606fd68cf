"""Places of images in a templated text that are several tokens of the tokenizer, which has none for them.

As in vLLM: where the text's token IDs hold those of every place as a text of its own, the places are there;
otherwise (a line break may have become a token with a place's end) they are looked for in the text, which is
encoded without them. A special token stands in for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from render_tier.model import ModelLoadError
from render_tier.rendering.prompt_cache import cuts_are_independent

if TYPE_CHECKING:
    from render_tier.rendering.image_parts import Mark, MediaMarks


def spelled_marks(marks: MediaMarks | None) -> tuple[Mark, ...]:
    """Those that no token stands for."""
    return () if marks is None else tuple(mark for mark in marks.by_kind.values() if mark.spelled is not None)


def check_tokenizer(marks: MediaMarks | None, tokenizer_json: Mapping[str, Any]) -> None:
    """Raises ModelLoadError for a tokenizer to which a special token makes a difference beside itself: vLLM
    encodes what its decoder makes of the IDs, which may be another text then."""
    if spelled_marks(marks) and not cuts_are_independent(tokenizer_json):
        raise ModelLoadError(
            "the places of this model's images are no tokens, and its tokenizer looks across special tokens, "
            """so images cannot be placed; --limit-mm-per-prompt '{"image": 0}' serves the model without"""
        )


def with_stand_ins(
    text: str, marks: Sequence[Mark], written: Callable[[str], str] = lambda special: special
) -> str:
    """``written``: how a special token is written in ``text``."""
    for mark in marks:
        assert mark.spelled is not None
        text = text.replace(mark.token, mark.spelled.lead + written(mark.spelled.stand_in))
    return text


def stand_ins_in(ids: list[int], text: str, marks: Sequence[Mark]) -> list[int] | None:
    """``ids``, those of ``text``, with stand-ins; None where they do not hold every place by itself."""
    for mark in marks:
        assert mark.spelled is not None
        stand_in = *mark.spelled.lead_ids, mark.spelled.stand_in_id
        ids, found = _replaced(ids, mark.spelled.ids, stand_in)
        if found != text.count(mark.token):
            return None
    return ids


def _replaced(ids: list[int], searched: tuple[int, ...], stand_in: tuple[int, ...]) -> tuple[list[int], int]:
    """With ``stand_in`` for each occurrence, and how many those are."""
    made: list[int] = []
    at = found = 0
    while at < len(ids):
        if ids[at] == searched[0] and tuple(ids[at : at + len(searched)]) == searched:
            made += stand_in
            at += len(searched)
            found += 1
        else:
            made.append(ids[at])
            at += 1
    return made, found
