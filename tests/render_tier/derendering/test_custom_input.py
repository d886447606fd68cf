"""The text of a custom tool's input, out of the arguments of the function that stands for it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.derendering.custom_input import CustomInput


def read(pieces: list[str]) -> str:
    """With the state written down between any two pieces."""
    out, state = "", b""
    for piece in pieces:
        reader = CustomInput.load(state)
        out += reader.feed(piece)
        state = reader.dump()
        assert len(state) < 300
    return out + CustomInput.load(state).finish()


@given(
    st.text(),
    st.booleans(),
    st.sampled_from(['{"input":%s}', ' {\n "input" : %s\n}', '{"input": %s, "x": 1}']),
)
def test_the_string_comes_out_whatever_the_pieces(text: str, ascii_only: bool, shape: str) -> None:
    arguments = shape % json.dumps(text, ensure_ascii=ascii_only)
    assert read([arguments]) == text
    assert read(list(arguments)) == text


@pytest.mark.parametrize(
    "arguments",
    ["plain words", '{"other": "x"}', '["input"]', '{"inputs": "x"}', '{"input', "{" + " " * 99, ""],
)
def test_arguments_of_another_shape_are_the_input(arguments: str) -> None:
    assert read([arguments]) == arguments
    assert read(list(arguments)) == arguments


@pytest.mark.parametrize(
    ("string", "text"),
    [(r"a\ud800b", "a\ufffdb"), (r"\ud800\n", "\ufffd\n"), (r"\uzzzz!", "\ufffd!"), ("cut \\u12", "cut ")],
)
def test_broken_escapes_do_no_harm(string: str, text: str) -> None:
    arguments = f'{{"input": "{string}"}}' if string[-2:] != "12" else f'{{"input": "{string}'
    assert read([arguments]) == text
    assert read(list(arguments)) == text
