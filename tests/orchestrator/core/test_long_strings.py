"""Long strings cut out of a JSON text and put in again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.long_strings import (
    LONG,
    Apart,
    cut,
    reference,
    referred,
    size_of,
    with_strings,
    written,
)  # fmt: skip

KEY = b'"data":'
FILL = "QUJD" * (LONG // 4)


def texts() -> st.SearchStrategy[Any]:
    """Strings with all that JSON escapes, some of them long, and what looks like a reference."""
    short = st.text(st.sampled_from('ab\\"/\x01\n07é'), max_size=6)
    long = st.tuples(short, short).map(lambda ends: ends[0] + FILL + ends[1])
    return st.recursive(
        short | long | st.integers() | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short, inner, max_size=3),
        max_leaves=8,
    )


@given(texts(), texts(), st.sampled_from([",", ", "]))
def test_what_was_cut_is_put_in_again(before: Any, after: Any, comma: str) -> None:
    given_text = json.dumps({"a": before, "data": after, "b": before}, separators=(comma, ":")).encode()
    text, strings = cut(given_text, KEY)
    value = with_strings(msgspec.Raw(text), strings)
    assert b"".join(value.pieces() if isinstance(value, Apart) else [bytes(value)]) == given_text
    if strings:
        assert len(text) < len(given_text) - len(strings) * (LONG - 20)
        json.loads(text)


def test_only_long_strings_behind_the_key_are_cut() -> None:
    value = {"first": FILL, "data": ["x", FILL, {"y": FILL + '\\"'}], "last": FILL}
    text, strings = cut(json.dumps(value, separators=(",", ":")).encode(), KEY)
    assert [json.loads(bytes(each)) for each in strings] == [FILL, FILL + '\\"', FILL]
    left = json.loads(text)
    assert (left["first"], left["data"][0]) == (FILL, "x")
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    second = msgspec.json.decode(raw["data"], type=list[msgspec.Raw])[1]
    assert second == reference(0)
    assert size_of(second, strings) == len(FILL) + 2
    assert size_of(msgspec.Raw(b"null"), strings) == 4


def test_what_looks_like_a_reference_is_none_where_nothing_was_cut() -> None:
    for value in (reference(0), msgspec.Raw(b'"\\u0001%b"' % (b"9" * 5000))):
        assert size_of(value, ()) == len(bytes(value))
        assert referred(value, ()) is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"other":"%b"}' % FILL.encode(),
        b'{"data":"%b' % FILL.encode(),
        json.dumps({"data": [FILL, "\x010"]}, separators=(",", ":")).encode(),
    ],
    ids=["no key", "cut short", "has what a reference is"],
)
def test_other_texts_stay_as_they_are(text: bytes) -> None:
    assert cut(text, KEY) == (text, ())


@pytest.mark.parametrize("others", [{}, {"request_id": "\x010", "n": 1}])
def test_strings_are_sent_from_where_they_are(others: dict[str, Any]) -> None:
    given_text = json.dumps({"data": ["x", FILL, FILL + "y"]}, separators=(",", ":")).encode()
    text, strings = cut(given_text, KEY)
    pieces = written({**others, "features": with_strings(msgspec.Raw(text), strings)})
    assert json.loads(b"".join(pieces)) == {**others, "features": json.loads(given_text)}
    assert [piece.obj for piece in pieces if isinstance(piece, memoryview)] == [given_text] * 2
    assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 200


def test_a_request_without_long_strings_is_one_piece() -> None:
    for features in (with_strings(reference(0), ()), None):
        request = {"n": 1, "features": features}
        assert written(request) == [msgspec.json.encode(request)]
