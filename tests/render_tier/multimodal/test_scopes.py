"""Which of `mm_processor_kwargs` count for images, which for videos, and which go before others."""

from __future__ import annotations

from typing import Any

import pytest

from render_tier.multimodal.scopes import of_kind, over, settings_for


def test_what_counts_for_other_media_alone_is_no_part_of_it() -> None:
    given = {"b": 1, "images_kwargs": {"a": 2}, "videos_kwargs": {"a": 3}, "c": 4}
    assert list(of_kind(given, "video").items()) == [("b", 1), ("videos_kwargs", {"a": 3}), ("c", 4)]
    assert settings_for(given, "video") == {"a": 3, "b": 1, "c": 4}
    assert settings_for(given, "image") == {"a": 2, "b": 1, "c": 4}


@pytest.mark.parametrize(
    ("usual", "asked", "of_videos"),
    [
        ({"max_pixels": 1, "b": 2}, {"max_pixels": 3}, {"max_pixels": 3, "b": 2}),
        ({"max_pixels": 1}, {"size": {"longest_edge": 3}}, {"max_pixels": 3, "size": {"longest_edge": 3}}),
        (
            {"size": {"shortest_edge": 1, "longest_edge": 2}},
            {"max_pixels": 3},
            {"size": {"shortest_edge": 1, "longest_edge": 2}, "max_pixels": 3},
        ),
        ({"max_pixels": 1}, {"videos_kwargs": {"max_pixels": 3}}, {"max_pixels": 3}),
        ({"max_pixels": 1}, {"images_kwargs": {"max_pixels": 3}}, {"max_pixels": 1}),
        ({"videos_kwargs": {"max_pixels": 1}}, {"max_pixels": 3}, {"max_pixels": 1}),
        (
            {"videos_kwargs": {"max_pixels": 1, "min_pixels": 0}},
            {"videos_kwargs": {"size": {"longest_edge": 3}}},
            {"max_pixels": 3, "min_pixels": 0, "size": {"longest_edge": 3}},
        ),
    ],
)
def test_a_requests_go_before_the_operators_and_a_kinds_own_before_those_of_all(
    usual: dict[str, Any], asked: dict[str, Any], of_videos: dict[str, Any]
) -> None:
    """As vLLM's `_merge_and_resolve_mm_processor_kwargs` of Qwen-VL has it."""
    assert settings_for(over(usual, asked), "video") == of_videos
