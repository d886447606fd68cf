"""Places of images that are several tokens: looked for among a text's IDs, else in the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from render_tier.multimodal.families import Spelled
from render_tier.rendering.image_parts import Mark, MediaMarks
from render_tier.rendering.spelled_places import spelled_marks, stand_ins_in, with_stand_ins

IMAGE = Mark("<i>", "<i>", Spelled((60, 105, 62), "<I>", 300))
FILM = Mark("<v>", "<v>", Spelled((60, 118, 62), "<V>", 301))
BOTH = (IMAGE, FILM)
PLAIN = Mark("<pad>", "<pad>")
STAND_INS = {300: "<I>", 301: "<V>"}


def letters(text: str) -> list[int]:
    return list(map(ord, text))


@given(st.lists(st.sampled_from(["<i>", "<v>", "<", "i", ">", "a"])).map("".join))
def test_every_place_among_the_ids_gets_its_stand_in(text: str) -> None:
    found = stand_ins_in(letters(text), text, BOTH)
    assert found is not None
    assert "".join(STAND_INS.get(each) or chr(each) for each in found) == with_stand_ins(text, BOTH)


def test_a_place_that_runs_into_another_token_is_none_of_its_own() -> None:
    joined = 400  # ">\n"
    text = "a<i>b<i>\n"
    assert stand_ins_in([*letters("a<i>b<i"), joined], text, [IMAGE]) is None
    assert stand_ins_in(letters(text), text, [IMAGE]) == [97, 300, 98, 300, 10]


def test_a_special_token_is_written_as_the_text_has_it() -> None:
    assert with_stand_ins("a<i>", [IMAGE], lambda special: f"[{special}]") == "a[<I>]"


def test_what_leads_to_a_place_is_written_before_it() -> None:
    led = Mark("<v>", "<v>", Spelled((60, 118, 62), "<V>", 301, "One: ", (500, 501)))
    assert with_stand_ins("a <v>b", [led]) == "a One: <V>b"
    assert stand_ins_in(letters("a<v>"), "a<v>", [led]) == [97, 500, 501, 301]


def test_marks_that_are_tokens_have_no_stand_ins() -> None:
    assert spelled_marks(MediaMarks({"image": PLAIN, "video": FILM})) == (FILM,)
    assert spelled_marks(None) == ()
