"""Images and videos in messages: found in order, and shown to templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from render_tier.multimodal.families import Spelled
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.conversation import to_conversation
from render_tier.rendering.image_parts import (
    ImagePart,
    Kind,
    Mark,
    MediaMarks,
    ignored_details,
    image_parts,
)
from render_tier.rendering.settings import ContentFormat

MARKS = MediaMarks({"image": Mark("<mark><pad></mark>", "<pad>"), "video": Mark("<film>", "<reel>")})
IMAGE = {"type": "image_url", "image_url": {"url": "u"}}
VIDEO = {"type": "video_url", "video_url": {"url": "w"}}
BOTH: Sequence[Kind] = ("image", "video")


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def shown(*parts: Any, form: ContentFormat, marks: MediaMarks = MARKS) -> Any:
    (message,) = to_conversation(
        [user(*parts)], form, model="m", strict_history=False, warnings=[], marks=marks
    )
    return message["content"]


def test_images_are_found_in_the_order_of_the_prompt() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user(text("a"), IMAGE, "b", {"image_url": "v"}),
        {"role": "assistant", "content": None},
        user({"type": "input_image", "image_url": "w"}, {**IMAGE, "uuid": "7"}, VIDEO, {"video_url": "x"}),
    ]
    assert image_parts(messages, BOTH) == [
        ImagePart("messages.1.content.1.image_url", "u"),
        ImagePart("messages.1.content.3.image_url", "v"),
        ImagePart("messages.3.content.0.image_url", "w"),
        ImagePart("messages.3.content.1.image_url", "u", "7"),
        ImagePart("messages.3.content.2.video_url", "w", kind="video"),
        ImagePart("messages.3.content.3.video_url", "x", kind="video"),
    ]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {}}, "needs a `url`"),
        ({"type": "image_url", "image_url": {"url": 5}}, "needs a `url`"),
        ({"type": "image_url"}, "needs a `url`"),
        ({"image_url": ""}, "needs a `url`"),
        ({**IMAGE, "uuid": "x" * 257}, "longer than 256"),
        *(({**IMAGE, "uuid": uuid}, "uuid: a string is needed") for uuid in (1, 0, True, [], {}, 1.5)),
        ({"type": "video_url", "uuid": False}, "uuid: a string is needed"),
        ({"type": "image_pil", "image_pil": "x"}, "'image_pil' parts are not supported"),
        ({"audio_url": "x"}, "'audio_url' parts are not supported"),
        ({"type": "video_embeds", "video_embeds": "x"}, "'video_embeds' parts are not supported"),
    ],
)
def test_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        image_parts([user(text("a"), part)], BOTH)
    assert (caught.value.param or "").startswith("messages.0.content.1")


def test_the_types_that_a_model_takes_are_named() -> None:
    for part in ({"type": "image", "url": "u"}, IMAGE), ({"type": "image"},):
        with pytest.raises(BadRequest, match=r"Supported types: .*image_url, .*video_url"):
            shown(*part, form="openai")
    images = MediaMarks({"image": MARKS.by_kind["image"]})
    with pytest.raises(BadRequest, match="image_url") as caught:
        shown({"type": "image"}, form="string", marks=images)
    assert "video_url" not in caught.value.message


def test_videos_of_a_model_that_takes_none() -> None:
    with pytest.raises(BadRequest, match="'video_url' parts are not supported for this model; images are"):
        image_parts([user(VIDEO)], BOTH[:1])


def image(**fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "u", **fields}}


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None])
def test_details_are_known_and_change_nothing(detail: str | None) -> None:
    film = {"type": "video_url", "video_url": {"url": "w", "detail": detail}}
    messages = [user(image(detail=detail), {"type": "input_image", "image_url": "v", "detail": detail}, film)]
    parts = image_parts(messages, BOTH)
    assert [part.detail for part in parts] == [detail] * 3
    told = ignored_details(parts)
    assert len(told) == (0 if detail in ("auto", None) else 3)
    assert all("_url.detail has no effect" in each for each in told)


@pytest.mark.parametrize("detail", ["medium", "", 1, ["low"], {"low": 1}])
def test_details_that_are_none(detail: Any) -> None:
    for part in (image(detail=detail), {"type": "input_image", "image_url": "v", "detail": detail}):
        with pytest.raises(BadRequest, match="one of auto, low, high, original") as caught:
            image_parts([user(text("a"), part)], BOTH)
        assert caught.value.param == "messages.0.content.1.image_url.detail"
    with pytest.raises(BadRequest, match="one of auto, low, high, original") as caught:
        image_parts([user({"type": "video_url", "video_url": {"url": "w", "detail": detail}})], BOTH)
    assert caught.value.param == "messages.0.content.0.video_url.detail"


def test_an_image_may_be_meant_by_its_name_alone() -> None:
    parts = ({"type": "image_url", "uuid": "x"}, {"type": "image_url", "image_url": None, "uuid": "7"})
    assert image_parts([user(*parts, {"image_url": {"url": None}, "uuid": "z"})], BOTH) == [
        ImagePart("messages.0.content.0.image_url", None, "x"),
        ImagePart("messages.0.content.1.image_url", None, "7"),
        ImagePart("messages.0.content.2.image_url", None, "z"),
    ]
    with pytest.raises(BadRequest, match="needs a `url`"):
        image_parts([user({"image_url": "", "uuid": "x"})], BOTH)


def test_an_empty_name_is_none() -> None:
    assert image_parts([user({**IMAGE, "uuid": ""})], BOTH) == [
        ImagePart("messages.0.content.0.image_url", "u")
    ]
    with pytest.raises(BadRequest, match="needs a `url`"):
        image_parts([user({"type": "image_url", "image_url": None, "uuid": ""})], BOTH)


def test_template_that_takes_parts_is_shown_where_images_are() -> None:
    assert shown(text("a"), {**IMAGE, "size": "large"}, "b", VIDEO, form="openai") == [
        text("a"),
        {"type": "image", "size": "large"},
        text("b"),
        {"type": "video"},
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((text("a"), IMAGE, text("b")), "<mark><pad></mark>\na\nb"),
        ((IMAGE, IMAGE), "<mark><pad></mark>\n<mark><pad></mark>"),
        ((text("a <mark><pad></mark> b"), IMAGE), "a <mark><pad></mark> b"),
        ((text("a <mark><pad></mark> b"), IMAGE, IMAGE), "<mark><pad></mark>\na <mark><pad></mark> b"),
        ((text("a"), text("b")), "a\nb"),
        ((IMAGE, VIDEO, text("a"), IMAGE), "<mark><pad></mark>\n<mark><pad></mark>\n<film>\na"),
        ((VIDEO, text("a"), IMAGE), "<film>\n<mark><pad></mark>\na"),
        ((text("a <film> b"), VIDEO, VIDEO), "<film>\na <film> b"),
        ((text("no <mark><pad></mark>"), VIDEO), "<film>\nno <mark><pad></mark>"),
    ],
)
def test_content_as_one_string_has_marks_in_front_or_where_its_text_has_them(
    parts: tuple[Any, ...], expected: str
) -> None:
    assert shown(*parts, form="string") == expected


def test_more_marks_than_images() -> None:
    with pytest.raises(BadRequest, match="Found more"):
        shown(text("<mark><pad></mark> <mark><pad></mark>"), IMAGE, form="string")


@pytest.mark.parametrize("part", [text("see <pad>"), "see <pad>"])
def test_text_that_spells_the_place_of_an_image(part: Any) -> None:
    with pytest.raises(BadRequest, match="taken for the place of an image"):
        shown(IMAGE, part, form="openai")
    as_text = MediaMarks(MARKS.by_kind, literal_is_text=True)
    assert shown(IMAGE, part, form="openai", marks=as_text)[1] == text("see <pad>")
    spelled = MediaMarks({"image": Mark("<pad>", "<pad>", Spelled((1, 2), "<P>", 3))}, literal_is_text=True)
    with pytest.raises(BadRequest, match="taken for the place of an image"):
        shown(IMAGE, part, form="openai", marks=spelled)
    assert shown(part, form="openai") == [text("see <pad>")]
    assert shown(VIDEO, part, form="openai")[1] == text("see <pad>")
    with pytest.raises(BadRequest, match="taken for the place of a video"):
        shown(VIDEO, text("a <reel>"), form="openai")
