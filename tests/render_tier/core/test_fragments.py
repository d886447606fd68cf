"""Fragments know their own beginnings, and a scanner finds the same in any pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.fragments import Fragment, Look, Scanner, blanks, either, literal, sequence

CLOSE = sequence(literal("<"), blanks(most=2), literal("/"), blanks(most=2), literal("ab>"))
OPEN = sequence(literal("<ab"), blanks(1, 3), literal("="))
FRAGMENTS = [
    literal("<ab>"),
    CLOSE,
    OPEN,
    either([literal("<a"), CLOSE]),
    sequence(either([CLOSE, OPEN]), literal("!")),
]
pieces = st.lists(
    st.sampled_from(["<", "/", "a", "b", ">", "=", " ", "\n", "!", "ab>", "<ab", "</ab>", "</ab>  "]),
    max_size=12,
)


@pytest.mark.parametrize("fragment", FRAGMENTS)
@given(text=pieces.map("".join))
def test_every_beginning_of_a_match_is_a_beginning_and_nothing_else_is(fragment: Fragment, text: str) -> None:
    match = re.match(fragment.full, text)
    if match is not None:
        assert match[0][0] in fragment.firsts
        for end in range(1, match.end()):
            assert re.match(rf"{fragment.begin}\Z", match[0][:end])
    if text and re.match(rf"{fragment.begin}\Z", text):
        endings = (
            "",
            ">",
            "b>",
            "ab>",
            "/ab>",
            "!",
            "ab =",
            "b =",
            " =",
            "=",
            "ab>!",
            "/ab>!",
            "b>!",
            ">!",
            "=!",
            " =!",
            "ab =!",
            "b =!",
        )
        assert any(re.match(fragment.full, text + ending) for ending in endings)


SCANNER = Scanner(
    {
        "close": Look(CLOSE, either([OPEN, literal("<end>")])),
        "open": Look(OPEN),
        "lone": Look(CLOSE, last=True),
    }
)


def found(chunks: list[str]) -> tuple[list[tuple[str, str]], str]:
    """Plain texts and kinds in order, and what is held at the end."""
    out: list[tuple[str, str]] = []
    held = ""
    for chunk in chunks:
        text, index = held + chunk, 0
        while True:
            start, end, kind = SCANNER.next(text, index)
            if start > index:
                if out and out[-1][0] == "text":
                    out[-1] = ("text", out[-1][1] + text[index:start])
                else:
                    out.append(("text", text[index:start]))
            if not kind:
                held = text[start:]
                break
            out.append((kind, text[start:end]))
            index = end
    return out, held


@given(pieces)
def test_a_scanner_finds_the_same_in_any_pieces(chunks: list[str]) -> None:
    whole = found(["".join(chunks)])
    assert found(chunks) == whole
    assert found(list("".join(chunks))) == whole


def test_at_the_end_of_the_output_what_must_follow_may_be_missing() -> None:
    assert SCANNER.at_end("</ab>") == "close"
    assert SCANNER.at_end("</ab><e") == "close"
    assert SCANNER.at_end("</a") == ""
    assert SCANNER.at_end("") == ""
