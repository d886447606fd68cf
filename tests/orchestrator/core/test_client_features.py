"""Features of clients: what no engine can read is refused, whatever it is."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from struct import pack
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.token_in import read_token_request
from render_tier.multimodal.encoding import encode_item
from render_tier.multimodal.families import Family, Field, Replacement
from render_tier.protocol.errors import ApiError, BadRequest
from tests.support.mm_items import grid, item, of_pixels, tensor

FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["a"]},
    "mm_placeholders": {"image": [{"offset": 1, "length": 4}]},
    "kwargs_data": {"image": [of_pixels("x")]},
    "mm_metadata": {"image": [item(image_grid_thw=grid(1, 4, 4))]},
}
IDS = [1] * 8


def read(features: Any) -> int:
    """How many items are taken."""
    asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": features}
    return len(read_token_request(msgspec.json.encode(asked)).prompt.media)


def of(modality: str, features: dict[str, Any]) -> dict[str, Any]:
    return {name: {modality: part["image"]} for name, part in features.items()}


def test_what_engines_can_read_is_taken() -> None:
    assert read(FEATURES) == 1
    assert read(FEATURES | {"kwargs_data": None, "mm_metadata": {"image": [None]}}) == 1


def test_what_the_render_tier_writes_is_taken() -> None:
    """In every way in which fields are laid together."""

    def unused(*_: object) -> Replacement:
        raise AssertionError

    fields = {
        "pixel_values": Field("flat"),
        "image_grid_thw": Field("batched", keep_on_cpu=True),
        "patches": Field("shared", value=3),
    }
    arrays = {"pixel_values": np.zeros((16, 4), np.float32), "image_grid_thw": np.array([1, 4, 4])}
    written = encode_item(arrays, Family("", "", 0, fields, unused, 1, False, {}), "bfloat16")
    assert written.metadata is not None
    parts = {"kwargs_data": written.kwargs.decode(), "mm_metadata": written.metadata.decode()}
    assert read(FEATURES | {name: {"image": [value]} for name, value in parts.items()}) == 1


@pytest.mark.parametrize(
    "value",
    [
        "", "@@@@", "A", "é", "AAAA", "====", 1, True, [], {},
        b64encode(msgspec.msgpack.encode({})).decode(),
        b64encode(msgspec.msgpack.encode([1])).decode(),
        b64encode(msgspec.msgpack.encode({"image_grid_thw": 1})).decode(),
        b64encode(msgspec.msgpack.encode({1: {"data": 1, "field": ["shared", {}]}})).decode(),
        of_pixels("x")[:-4],
        of_pixels("x") + of_pixels("x"),
        item(image_grid_thw=grid(1, 1, 16)),
        item(image_grid_thw=tensor("int32", [3], bytes(12))),
        item(image_grid_thw=tensor("int64", [1, 3], pack("<3q", 1, 4, 4))),
        item(image_grid_thw={"data": [1, 4, 4], "field": ["batched", {}]}),
        item(second_per_grid_ts={"data": 1.0, "field": ["__init__", {}]}),
        item(second_per_grid_ts={"data": 1.0, "field": ["batched"]}),
        item(second_per_grid_ts={"data": 1.0, "field": ["batched", {}], "key": "x"}),
        item(second_per_grid_ts={"field": ["batched", {}]}),
        item(video_grid_thw=grid(1, 4, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", ["kwargs_data", "mm_metadata"])
def test_what_they_cannot_is_refused(part: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=part) as refused:
        read(FEATURES | {part: {"image": [value]}})
    assert refused.value.param == "features"


def seconds(value: float, kind: str = "float32", shape: Sequence[int] = ()) -> dict[str, Any]:
    raw = pack({"float16": "<e", "float64": "<d"}.get(kind, "<f"), value)
    return tensor(kind, list(shape), raw[2:] if kind == "bfloat16" else raw)


def of_video(**fields: Any) -> dict[str, Any]:
    """A video of two frames, four tokens each."""
    place = {"offset": 0, "length": 8}
    return {
        "mm_hashes": {"video": ["a"]},
        "mm_placeholders": {"video": [place]},
        "kwargs_data": {"video": [item(video_grid_thw=grid(2, 4, 4), **fields)]},
    }


@pytest.mark.parametrize(
    "told",
    [
        *(seconds(1e-6), seconds(4), seconds(0.5, shape=[1])),
        *(seconds(1, kind) for kind in ("bfloat16", "float16", "float64")),
    ],
)
def test_videos_may_say_how_many_seconds_are_between_their_frames(told: dict[str, Any]) -> None:
    assert read(of_video(second_per_grid_ts=told)) == 1


@pytest.mark.parametrize(
    "told",
    [
        *map(seconds, (0, -1, float("nan"), float("inf"), 4.001, 3e38)),
        seconds(1e300, "float64"),
        seconds(1, shape=[2]),
        tensor("float32", [2], pack("<2f", 1, 1)),
        tensor("float32", [], b""),
        tensor("int64", [], pack("<q", 1)),
        {"data": 1.0, "field": ["batched", {}]},
    ],
)
@pytest.mark.parametrize("part", ["kwargs_data", "mm_metadata"])
def test_seconds_that_engines_have_no_positions_for_are_refused(part: str, told: dict[str, Any]) -> None:
    """An engine counts positions by them, and ends at one that it does not have."""
    features: dict[str, Any] = of_video()
    wrong: dict[str, Any] = {part: {"video": [item(video_grid_thw=grid(2, 4, 4), second_per_grid_ts=told)]}}
    with pytest.raises(BadRequest, match=rf"{part} of features has what no engine .* a video") as refused:
        read(features | wrong)
    assert refused.value.param == "features"


def test_one_hash_stands_for_one_item() -> None:
    """An engine that has other places for it than for the first one of that hash ends."""
    again = {"offset": 5, "length": 2}
    twice = {name: {"image": part["image"] * 2} for name, part in FEATURES.items()}
    assert (
        read(
            twice
            | {"mm_placeholders": {"image": [{"offset": 0, "length": 4}, again | {"offset": 4, "length": 4}]}}
        )
        == 2
    )
    for changed in (
        {"mm_placeholders": {"image": [{"offset": 0, "length": 4}, again]}, "mm_metadata": None},
        {"mm_placeholders": {"image": [{"offset": 0, "length": 4}, {"offset": 4, "length": 4}]}}
        | {"kwargs_data": {"image": [of_pixels("x"), of_pixels("y")]}},
        {name: {**part, "video": part["image"]} for name, part in FEATURES.items() if name != "mm_metadata"}
        | {"mm_metadata": None}
        | {"mm_placeholders": {"image": [{"offset": 0, "length": 4}], "video": [{"offset": 4, "length": 4}]}},
    ):
        with pytest.raises(BadRequest, match="'a' for two items that differ"):
            read(twice | changed)


def test_slashes_may_be_escaped() -> None:
    packed = item(pixel_values=tensor("uint8", [9], b"\xff" * 9))
    asked = {"token_ids": IDS, "sampling_params": {}, "features": FEATURES}
    asked["features"] = FEATURES | {"kwargs_data": {"image": [packed]}}
    body = msgspec.json.encode(asked)
    assert b"/" in body
    assert len(read_token_request(body.replace(b"/", b"\\/")).prompt.media) == 1


def test_modalities_are_vllms() -> None:
    pixels = FEATURES | {"mm_metadata": {"image": [None]}}
    assert [read(of(modality, pixels)) for modality in ("image", "video", "audio", "vision_chunk")] == [1] * 4
    for modality in ("x", "", "Image"):
        for features in (
            of(modality, pixels),
            {"mm_hashes": {modality: []}, "mm_placeholders": {modality: []}},
        ):
            with pytest.raises(BadRequest, match="image, video, audio"):
                read(features)
    with pytest.raises(BadRequest, match="a video has the grid of an image"):
        read(of("video", FEATURES))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
GRIDS = st.builds(grid, *[st.integers(-1, 4)] * 3)
ITEMS = st.one_of(
    st.just(of_pixels("x")),
    st.builds(lambda told: item(image_grid_thw=told), GRIDS),
    st.builds(lambda told: item(video_grid_thw=told), GRIDS),
    st.binary(max_size=9).map(lambda packed: b64encode(packed).decode()),
    JSON,
)
PLACES = st.one_of(
    st.fixed_dictionaries(
        {"offset": st.integers(-1, 8), "length": st.integers(0, 5)},
        optional={"is_embed": st.lists(st.booleans(), max_size=4) | JSON},
    ),
    JSON,
)
MODALITY = st.sampled_from(["image", "image", "image", "video", "x"])


def by_modality(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(MODALITY, st.lists(values, min_size=1, max_size=2), min_size=1, max_size=2) | JSON


NEARLY_PLACES = st.fixed_dictionaries(
    {"offset": st.integers(0, 4), "length": st.sampled_from([1, 2, 4])},
    optional={"is_embed": st.sampled_from([[True], [True, False], [True] * 4])},
)
NEARLY_ITEMS = st.one_of(
    st.sampled_from([None, of_pixels("x"), of_pixels("y"), "AAAA"]),
    st.builds(
        lambda modality, *patches: item(**{f"{modality}_grid_thw": grid(*patches)}),
        st.sampled_from(["image", "image", "video"]),
        *(st.sampled_from([1, 1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    ),
)


def parts(count: int, modality: str) -> st.SearchStrategy[Any]:
    """Of so many items: what is close to features that fit."""

    def of_all(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({modality: st.lists(values, min_size=count, max_size=count)})

    return st.fixed_dictionaries(
        {"mm_hashes": of_all(st.sampled_from("ab")), "mm_placeholders": of_all(NEARLY_PLACES)},
        optional={"kwargs_data": of_all(NEARLY_ITEMS), "mm_metadata": of_all(NEARLY_ITEMS)},
    )


NEARLY = st.tuples(st.integers(1, 2), MODALITY).flatmap(lambda drawn: parts(*drawn))
ANY = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"mm_hashes": by_modality(st.text(max_size=2)), "mm_placeholders": by_modality(PLACES)},
        optional={"kwargs_data": by_modality(ITEMS), "mm_metadata": by_modality(ITEMS)},
    ),
)


@given(st.booleans().flatmap(lambda near: NEARLY if near else ANY))
def test_any_features_are_refused_or_keep_the_laws(features: Any) -> None:
    refused: ApiError | None = None
    try:
        read(features)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        assert str(refused.param).startswith(("features", "body.features"))
    elif features is not None:
        keeps_the_laws(features)


def keeps_the_laws(features: dict[str, Any]) -> None:
    hashes, places = features["mm_hashes"], features["mm_placeholders"]
    taken = {name: features.get(name) for name in ("kwargs_data", "mm_metadata")}
    assert set(hashes) <= {"image", "video", "audio", "vision_chunk"}
    for told in (places, *filter(None, taken.values())):
        assert {modality: len(each) for modality, each in told.items()} == {
            modality: len(each) for modality, each in hashes.items()
        }
    covered = [
        position
        for each in places.values()
        for place in each
        for position in range(place["offset"], place["offset"] + place["length"])
    ]
    assert len(set(covered)) == len(covered)
    assert set(covered) <= set(range(len(IDS)))
    for modality, each in places.items():
        for index, place in enumerate(each):
            mask = place.get("is_embed")
            tokens = place["length"] if mask is None else sum(mask)
            assert tokens
            assert mask is None or (set(map(type, mask)) == {bool} and len(mask) == place["length"])
            for told in filter(None, taken.values()):
                if told[modality][index] is not None:
                    check(msgspec.msgpack.decode(b64decode(told[modality][index])), modality, tokens)


def check(fields: dict[str, Any], modality: str, tokens: int) -> None:
    """An item with a grid is of its modality, and squares of its patches are the tokens of its place."""
    assert fields
    grids = [name for name in ("image_grid_thw", "video_grid_thw") if name in fields]
    assert grids in ([], [f"{modality}_grid_thw"])
    for name in grids:
        raw = fields[name]["data"][2].data
        frames, rows, columns = (int.from_bytes(raw[at : at + 8], "little", signed=True) for at in (0, 8, 16))
        assert modality == "video" or frames == 1
        assert any(
            frames * (rows // side) * (columns // side) == tokens and rows % side == columns % side == 0
            for side in range(1, 5)
        )
