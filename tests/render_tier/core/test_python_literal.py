"""Python literals become JSON, in any pieces; what is no literal is refused where it shows."""

from __future__ import annotations

import ast
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.core.python_literal import KEY_LIMIT, TOKEN_LIMIT, PythonLiteral

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
KEYS = st.text(max_size=8) | st.integers() | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def convert(text: str, cuts: list[int] | None = None) -> tuple[bool, str, int]:
    """(valid, JSON, characters read) of a literal and a bracket behind it, its state saved at every cut."""
    whole = text + ")"
    edges = [0, *sorted(cut % (len(whole) + 1) for cut in cuts or []), len(whole)]
    literal, out = PythonLiteral(), list[str]()
    for start, end in pairwise(edges):
        literal = PythonLiteral.load(msgspec.msgpack.decode(msgspec.msgpack.encode(literal.dump())))
        stopped = literal.feed(whole[start:end], 0, out)
        if stopped >= 0:
            return literal.valid, "".join(out), start + stopped
    return literal.valid, "".join(out), len(whole)


@given(VALUES, st.lists(st.integers(0, 10_000), max_size=6))
def test_what_python_writes_is_read_as_json_writes_it(value: Any, cuts: list[int]) -> None:
    text = repr(value)
    valid, got, read = convert(text, cuts)
    assert (valid, read) == (True, len(text))
    assert json.loads(got) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("'''tri'ple\n'''", "tri'ple\n"),
        ('""', ""),
        ("r'a\\n\\'b'", "a\\n\\'b"),
        ("u'a' \"b\"\n'c'", "abc"),
        (r"'\x41\u00e9\101\N{BULLET}\q\U0001F600'", "Aé" + "A\\N{BULLET}\\q😀"),
        ("'a\\\nb'", "ab"),
        ("+7", 7),
        ("007", 7),
        ("-0x1F", -31),
        ("0b101", 5),
        ("1_000", 1000),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1e-7", -1e-7),
        ("true", True),
        ("null", None),
        ("red", "red"),
        ("{1, 2, }", [1, 2]),
        ("{'a'}", ["a"]),
        ("{}", {}),
        ("()", []),
        ("{'a': {'b', 'c'}, }", {"a": ["b", "c"]}),
        ("{1: 2, None: 3, True: {}}", {"1": 2, "null": 3, "true": {}}),
    ],
)  # fmt: skip
def test_spellings(text: str, want: Any) -> None:
    valid, got, read = convert(text)
    assert (valid, read, json.loads(got)) == (True, len(text), want)
    assert all(convert(text, [cut]) == (valid, got, read) for cut in range(len(text)))


@pytest.mark.parametrize("inner", ["it's mint", "sed -n '1,9p' f.py", "a 'b' c", "say 'x' % y"])
def test_a_quote_ends_a_string_only_where_the_syntax_goes_on(inner: str) -> None:
    valid, got, _ = convert(f"'{inner}'")
    assert (valid, json.loads(got)) == (True, inner)


def test_valid_strings_are_never_healed() -> None:
    text = "['a', 'b' , {'c' : 'd'}]"
    assert json.loads(convert(text)[1]) == ast.literal_eval(text)


@pytest.mark.parametrize("text", ["[1 2]", "{'a': }", "{1: 2, 3}", "@", "[)", "{[]: 1, }", "[1: 2]"])
def test_what_is_no_literal_is_refused(text: str) -> None:
    assert convert(text)[0] is False


@pytest.mark.parametrize(
    "text", ["9" * (TOKEN_LIMIT + 1), "{'" + "k" * (KEY_LIMIT + 1), "[" * 600], ids=["digits", "key", "depth"]
)
def test_bounds(text: str) -> None:
    assert convert(text)[0] is False


@given(st.text("[](){}'\"\\,:=.-+0x1eNrTu \n"), st.lists(st.integers(0, 1000), max_size=5))
def test_no_text_raises_and_any_pieces_agree(text: str, cuts: list[int]) -> None:
    assert convert(text, cuts) == convert(text)
    if convert(text)[0] and convert(text)[2] < len(text) + 1:
        json.loads(convert(text)[1])


@pytest.mark.parametrize("at", range(12))
def test_a_damaged_state_is_refused_or_harmless(at: int) -> None:
    literal = PythonLiteral()
    literal.feed("{'a': ['b", 0, [])
    for wrong in (-7, 99, "?", "q" * 5000, None, True, []):
        state = literal.dump()
        state[at] = wrong
        try:
            PythonLiteral.load(state).feed("x'\"\\]}", 0, [])
        except (ValueError, msgspec.ValidationError):
            continue
