"""Where images stand in a prompt's token IDs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from render_tier.multimodal.families import Family, Replacement
from render_tier.multimodal.placeholders import MisplacedImages, Range, cut, expand, moved

PAD, SOFT, BEGIN, END, LINE, LINES, LINES3, LINES4 = range(100, 108)


def unused(_: object) -> Replacement:
    raise AssertionError


QWEN = Family("<mark>", "<pad>", PAD, {}, unused, 1, False, {})
GEMMA = replace(
    QWEN,
    token_id=BEGIN,
    joined={(LINE, LINES): LINES3, (LINES, LINE): LINES3, (LINES, LINES): LINES4},
)
GEMMA_IMAGE = Replacement((LINES, BEGIN, SOFT, SOFT, END, LINES), 2, 2)


def pads(count: int) -> Replacement:
    return Replacement((PAD,) * count, 0, count)


def test_each_place_gets_its_image() -> None:
    ids, ranges = expand([1, PAD, 2, PAD, 3], QWEN, [pads(2), pads(3)])
    assert ids == [1, PAD, PAD, 2, PAD, PAD, PAD, 3]
    assert ranges == [Range(1, 2), Range(4, 3)]


@pytest.mark.parametrize(
    ("ids", "places"), [([1, 2], "0 places"), ([1, PAD, 2], "1 place"), ([PAD, PAD, PAD], "3 places")]
)
def test_places_and_images_must_be_as_many(ids: list[int], places: str) -> None:
    with pytest.raises(MisplacedImages, match=f"has {places} for images, and needs 2$"):
        expand(ids, QWEN, [pads(2), pads(2)])


def test_only_the_tokens_that_embeddings_replace_are_a_range() -> None:
    ids, ranges = expand([1, BEGIN, 2], GEMMA, [GEMMA_IMAGE])
    assert ids == [1, LINES, BEGIN, SOFT, SOFT, END, LINES, 2]
    assert ranges == [Range(3, 2)]


@pytest.mark.parametrize("kept", [slice(1, None), slice(2, None), slice(0, 9), slice(1, 9)])
def test_what_is_cut_off_around_images_moves_them(kept: slice) -> None:
    images = [GEMMA_IMAGE]
    ids, ranges = expand([1, 1, BEGIN, 2, 2], GEMMA, images)
    rest, moved_ranges = cut(ids, ranges, images, kept)
    assert rest == ids[kept]
    assert [rest[where.offset : where.offset + where.length] for where in moved_ranges] == [[SOFT, SOFT]]


@pytest.mark.parametrize("kept", [slice(3, None), slice(0, 7), slice(0, 1), slice(9, None)])
def test_no_image_is_cut(kept: slice) -> None:
    """Nor what stands around its embeddings."""
    images = [GEMMA_IMAGE]
    ids, ranges = expand([1, 1, BEGIN, 2, 2], GEMMA, images)
    with pytest.raises(MisplacedImages, match="an image, which is at tokens 2 to 8 of 10"):
        cut(ids, ranges, images, kept)


def test_no_run_of_a_video_is_cut() -> None:
    video = Replacement((7, PAD, PAD, 7, PAD, PAD), 1, 2, later=(4,), of_video=True)
    ids, ranges = expand([1, BEGIN, 1], QWEN, [video], BEGIN)
    assert cut(ids, ranges, [video], slice(1, None)) == (ids[1:], [Range(1, 2), Range(4, 2)])
    with pytest.raises(MisplacedImages, match="a video"):
        cut(ids, ranges, [video], slice(0, 6))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([LINE], [], [LINES3, BEGIN, SOFT, SOFT, END, LINES]),
        ([LINES], [], [LINES4, BEGIN, SOFT, SOFT, END, LINES]),
        ([], [LINE], [LINES, BEGIN, SOFT, SOFT, END, LINES3]),
        ([], [LINES, LINE], [LINES, BEGIN, SOFT, SOFT, END, LINES4, LINE]),
    ],
)
def test_line_breaks_are_joined_as_the_tokenizer_joins_them(
    before: list[int], after: list[int], expected: list[int]
) -> None:
    ids, ranges = expand([*before, BEGIN, *after], GEMMA, [GEMMA_IMAGE])
    assert ids == expected
    assert ranges == [Range(2, 2)]


def test_two_images_in_a_row() -> None:
    ids, ranges = expand([BEGIN, BEGIN], GEMMA, [GEMMA_IMAGE, GEMMA_IMAGE])
    assert ids == [LINES, BEGIN, SOFT, SOFT, END, LINES4, BEGIN, SOFT, SOFT, END, LINES]
    assert ranges == [Range(2, 2), Range(7, 2)]


@given(
    st.lists(st.integers(0, 9)),
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 9)))),
)
def test_ranges_hold_the_images_and_the_rest_is_unchanged(
    start: list[int], rest: list[tuple[int, list[int]]]
) -> None:
    prompt = [*start]
    for _, text in rest:
        prompt += [PAD, *text]
    ids, ranges = expand(prompt, QWEN, [pads(count) for count, _ in rest])
    assert [where.length for where in ranges] == [count for count, _ in rest]
    for where in ranges:
        assert set(ids[where.offset : where.offset + where.length]) == {PAD}
    assert [token for token in ids if token != PAD] == [token for token in prompt if token != PAD]
    assert len(ids) == len(prompt) + sum(count - 1 for count, _ in rest)


def test_ranges_move_with_what_stands_before_them() -> None:
    before = [1, PAD, PAD, 2, 3, PAD, SOFT, SOFT, 4]
    ranges = [Range(1, 2), Range(5, 1), Range(6, 2, (True, False))]
    after = [1, PAD, PAD, 9, PAD, SOFT, SOFT, 4]
    assert moved(ranges, before, after) == [Range(1, 2), Range(4, 1), Range(5, 2, (True, False))]
    assert moved([], before, after) == []
    assert moved(ranges, before, before) == ranges


@pytest.mark.parametrize("after", [[1, PAD, 2, PAD], [1, PAD, PAD, PAD, 2], [PAD, 1, PAD, 2], [1, 2]])
def test_images_that_are_not_in_the_other_prompt(after: list[int]) -> None:
    with pytest.raises(MisplacedImages):
        moved([Range(1, 2)], [1, PAD, PAD, 2], after)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_every_image_is_found_again(images: list[tuple[int, int, int]]) -> None:
    """(tokens of an image, words before it in the one prompt, and in the other)"""
    before: list[int] = []
    after: list[int] = []
    old, new = [], []
    for count, words, others in images:
        before += [1] * words
        after += [2] * others
        old.append(Range(len(before), count))
        new.append(Range(len(after), count))
        before += [PAD] * count
        after += [PAD] * count
    assert moved(old, before, after) == new
