"""Whether a conversation's prompt goes on from token IDs that a model has seen and written, and how.

A turn has a prompt and an output, as IDs. The next turn's messages are rendered whole; when the text of the
result begins with what those IDs spell, the next prompt is those IDs, then the IDs of the rest. So the cut is
where the template itself puts it, nothing of it is searched for, and the result spells what a whole render
spells, whichever way the output was cut into tokens.

Special tokens match special tokens alone: text that spells one is other text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from render_tier.core.vocabulary import Vocabulary

NEVER = b"\xfe"
"""Stands for tokens that no text is made of: bytes that UTF-8 has not, and IDs that spell nothing."""
SPECIAL = b"\xff"


@dataclass(frozen=True)
class Continued:
    """The prompt goes on: the given IDs, then ``tail``."""

    tail: list[int]


@dataclass(frozen=True)
class Parted:
    """Given and rendered IDs spell different texts, or the cut between them cannot be made."""

    given: int
    """Place of the token, among those given, in which the texts part; their number when they agree, but the
    rest of a rendered token, which they end inside of, cannot stand alone."""
    rendered: int
    """The same among the rendered ones; their number when the rendered text ends first."""
    agreed: int
    """Bytes of the rendered text, as `spelling` has it, that the given one agrees with."""


def continued(
    given: Sequence[int],
    rendered: Sequence[int],
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
) -> Continued | Parted:
    """``encode``: IDs of a text without special tokens in it."""
    same = common_length(given, rendered)
    if same == len(given):
        return Continued(list(rendered[same:]))
    seen, written = ([spelling(i, vocabulary) for i in ids[same:]] for ids in (given, rendered))
    seen_text, written_text = b"".join(seen), b"".join(written)
    if not written_text.startswith(seen_text):
        agreed = _agreed(seen_text, written_text)
        before = spelled_length(rendered[:same], vocabulary)
        return Parted(same + _token_at(seen, agreed), same + _token_at(written, agreed), before + agreed)
    end = _token_at(written, len(seen_text))
    over = len(seen_text) - sum(map(len, written[:end]))
    if not over:
        return Continued(list(rendered[same + end :]))
    rest = written[end][over:]
    joined = _encoded(rest, vocabulary, encode)
    if joined is None:
        return Parted(len(given), same + end, spelled_length(rendered[: same + end], vocabulary) + over)
    return Continued([*joined, *rendered[same + end + 1 :]])


def spelling(token_id: int, vocabulary: Vocabulary) -> bytes:
    """What a token is to a comparison; never empty."""
    if token_id in vocabulary.special_ids:
        return b"%b%d%b" % (SPECIAL, token_id, SPECIAL)
    raw = vocabulary.token_bytes(token_id)
    return NEVER if not raw or SPECIAL in raw or NEVER in raw else raw


def spelled_length(token_ids: Sequence[int], vocabulary: Vocabulary) -> int:
    """Bytes of the tokens' spellings."""
    return sum([len(spelling(token_id, vocabulary)) for token_id in token_ids])


def common_bytes(one: Sequence[int], other: Sequence[int], vocabulary: Vocabulary) -> int:
    """Of how many bytes the spellings of two prompts begin alike."""
    same = common_length(one, other)
    texts = [b"".join([spelling(i, vocabulary) for i in ids[same:]]) for ids in (one, other)]
    return spelled_length(one[:same], vocabulary) + _agreed(*texts)


def ends_inside_character(token_ids: Sequence[int], vocabulary: Vocabulary) -> bool:
    """Whether what the last tokens spell is not whole UTF-8."""
    last = b"".join([vocabulary.token_bytes(i) for i in token_ids[-4:] if i not in vocabulary.special_ids])
    for width in range(1, min(4, len(last)) + 1):
        byte = last[-width]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            needs = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return needs > width
    return False


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Of how many items the two begin alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # slices are compared in C
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _agreed(one: bytes, other: bytes) -> int:
    """Bytes that two spellings begin with alike, with no part of a special token."""
    length = common_length(one, other)
    halved = one.count(SPECIAL, 0, length) % 2
    return one.rindex(SPECIAL, 0, length) if halved else length


def _token_at(spelled: list[bytes], place: int) -> int:
    """The token that the byte at ``place`` belongs to; their number at the end."""
    end = 0
    for index, token in enumerate(spelled):
        end += len(token)
        if place < end:
            return index
    return len(spelled)


def _encoded(text: bytes, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> list[int] | None:
    """IDs that spell ``text``, if it is text and its IDs do."""
    try:
        ids = encode(text.decode())
    except UnicodeDecodeError:
        return None
    return ids if b"".join([spelling(i, vocabulary) for i in ids]) == text else None
