"""What would keep the harmony library busy is refused before the library sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from render_tier.protocol.errors import BadRequest
from render_tier.rendering.harmony_runs import LONGEST_RUN, check_names, check_tools

HALF = LONGEST_RUN // 2
RUNS = {
    "letters": "x" * LONGEST_RUN + "x",
    "letters and marks": "a\u0301" * HALF + "a",
    "signs and marks": "-\u0301" * HALF + "-",
    "signs": "_-" * HALF + "_",
    "tabs": "\t" * LONGEST_RUN + "\t",
    "blanks": " \u3000" * HALF + " ",
    "signs that Python takes for blanks": "-\x1c" * HALF + "-",
    "letters of a later Unicode": "a\U00031350" * HALF + "a",
}


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **function}}]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_long_runs_are_refused_wherever_they_stand(run: str) -> None:
    for tools in (
        tool(description=run),
        tool(name=run),
        tool(parameters={"type": "object", "properties": {run: {"type": "string"}}}),
        tool(parameters={"type": "object", "properties": {"a": {"type": "string", "enum": ["b", run]}}}),
    ):
        with pytest.raises(BadRequest, match="in one word"):
            check_tools(tools)
    check_tools(tool(description=run[:-10]))
    with pytest.raises(BadRequest, match="in one word"):
        check_names(["f", run])


@pytest.mark.parametrize(
    "default",
    [[[]] * LONGEST_RUN, [""] * LONGEST_RUN, {f"{'-' * n}{'a' * (n % 2)}": "" for n in range(100)}],
    ids=["empty lists", "empty texts", "keys in order"],
)
def test_values_that_are_written_as_json_make_runs_too(default: Any) -> None:
    with pytest.raises(BadRequest, match="in one word"):
        check_tools(tool(parameters={"properties": {"a": {"type": "array", "default": default}}}))


def test_runs_that_are_allowed_may_not_add_up_without_end() -> None:
    with pytest.raises(BadRequest, match="too long"):
        check_tools(tool(description=f"{'x' * LONGEST_RUN} " * 100))
    with pytest.raises(BadRequest, match="too long"):
        check_tools(tool(description="a few words " * 500_000))


def test_names_are_looked_at_no_further_than_to_the_bound() -> None:
    taken = 0

    def names() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "n" * LONGEST_RUN

    with pytest.raises(BadRequest, match="too long"):
        check_names(names())
    assert taken < 100


@pytest.mark.parametrize(
    "text",
    [
        "Gets the weather of a city, in words.\n" * 2000,
        "都市の天気を教えます。\n" * 3000,
        "| a | b |\n|---|---|\n" * 3000,
    ],
    ids=["English", "Japanese", "table"],
)
def test_long_descriptions_are_welcome(text: str) -> None:
    check_tools(tool(description=text))
