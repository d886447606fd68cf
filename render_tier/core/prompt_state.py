"""Whether a prompt leaves reasoning open: decided from its end, in the current turn only."""

from __future__ import annotations

from collections.abc import Sequence

from render_tier.core.table import ReasoningFormat
from render_tier.core.vocabulary import Vocabulary


def prompt_reasoning(fmt: ReasoningFormat, prompt_ids: Sequence[int], vocabulary: Vocabulary) -> bool | None:
    """True: the prompt leaves reasoning open. False: it closed it. None: its current turn says nothing.

    The current turn is what follows the last special token that is not itself a reasoning marker; a marker in
    an earlier turn or in the instructions says nothing about this answer.
    """
    start, end = vocabulary.token_id(fmt.start), vocabulary.token_id(fmt.end)
    special = vocabulary.special_ids
    turn: list[int] = []
    for token_id in reversed(prompt_ids):
        if token_id == start:
            return True
        if token_id == end:
            return False
        if token_id in special:
            break
        turn.append(token_id)
    if start is not None and end is not None:
        return None
    text = vocabulary.text(turn[::-1])  # markers that are not single tokens
    opened, closed = text.rfind(fmt.start), text.rfind(fmt.end)
    return None if opened == closed else opened > closed
