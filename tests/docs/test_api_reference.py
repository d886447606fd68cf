"""docs/api.md is what the code says, and its tables say what JSON will be taken."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from annotated_types import Ge, Lt
from pydantic import BaseModel, Field

from scripts import api_reference
from scripts.message_tables import sections, typed


def test_the_page_is_what_the_code_says() -> None:
    assert api_reference.PAGE.read_text(encoding="utf-8") == api_reference.page(), (
        "run .venv/bin/python scripts/api_reference.py"
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (str | None, "string or null"),
        (list[dict[str, Any]], "array of object"),
        (dict[str, list[int]], "object of array of integer"),
        (tuple[int, float], "[integer, number]"),
        (Literal["a", 2], '`"a"`, `2`'),
        (Annotated[int, msgspec.Meta(ge=0, le=5)], "integer (≥ 0, ≤ 5)"),
        (list[Annotated[float, Ge(1), Lt(2)]], "array of number (≥ 1, < 2)"),
        (int | msgspec.UnsetType, "integer"),
        (msgspec.Raw, "any"),
    ],
)
def test_types(kind: Any, text: str) -> None:
    assert typed(kind) == text


def test_a_type_that_nobody_has_thought_of_is_no_guess() -> None:
    with pytest.raises(TypeError, match="how is"):
        typed("int")


class Part(msgspec.Struct, tag="part"):
    size: int = 3


class Whole(msgspec.Struct):
    parts: list[Part] | None = None


class Request(BaseModel):
    """As ``pydantic`` reads it."""

    schema_: str = Field(alias="schema", max_length=9)


def test_models_are_followed_into_their_fields_once() -> None:
    request, whole, part = sections([Request, Whole, Part], set())
    assert request.startswith("### Request\n\nAs `pydantic` reads it.\n")
    assert "| `schema` | string (length ≤ 9) | required |" in request
    assert "| `parts` | array of Part or null | `null` |" in whole
    assert '| `type` | `"part"` | required |' in part
    assert "| `size` | integer | `3` |" in part
