"""Grids of images against their places, in what render says and in what clients of token IDs send."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.legs import RenderReplyError, read_render_reply
from orchestrator.core.token_in import read_token_request
from render_tier.multimodal.encoding import encode_item
from render_tier.multimodal.families import Family, Field, Replacement, VideoForm
from render_tier.protocol.errors import BadRequest
from tests.support.mm_items import of_pixels

Grid = tuple[int, int, int]


def unused(*_: object) -> Replacement:
    raise AssertionError


FAMILY = Family(
    *("", "", 0),
    {"pixel_values": Field("flat"), "image_grid_thw": Field("batched", keep_on_cpu=True)},
    *(unused, 1, False, {}),
)


VIDEO = VideoForm(
    *("", "", 0, "video", "from the start"),
    {"video_grid_thw": Field("batched", keep_on_cpu=True)},
    unused,
)


def told(grid: Grid, modality: str = "image") -> str:
    """Metadata as the render tier encodes it."""
    arrays = {"pixel_values": np.zeros((1, 4), np.uint8), f"{modality}_grid_thw": np.array(grid)}
    metadata = encode_item(arrays, FAMILY if modality == "image" else VIDEO, "bfloat16").metadata
    assert metadata is not None
    return metadata.decode()


def request(images: list[tuple[str | None, int]], modality: str = "image") -> bytes:
    """With an image, or a video, for each (metadata, tokens of its place)."""
    token_ids, places = [1], []
    for _, length in images:
        places.append({"offset": len(token_ids), "length": length})
        token_ids += [9] * length + [2]
    features: dict[str, Any] = {
        "mm_hashes": {modality: [str(number) for number in range(len(images))]},
        "mm_placeholders": {modality: places},
        "kwargs_data": {modality: [of_pixels("x")] * len(images)},
        "mm_metadata": {modality: [metadata for metadata, _ in images]},
    }
    return msgspec.json.encode({"token_ids": token_ids, "sampling_params": {}, "features": features})


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)), max_size=4),
    st.integers(1, 3),
    st.sampled_from(["image", "video"]),
)
def test_grids_that_fit(grids: list[Grid], merge: int, modality: str) -> None:
    if modality == "image":
        grids = [(1, rows, columns) for _, rows, columns in grids]
    items = [
        (told((t, merge * rows, merge * columns), modality), t * rows * columns) for t, rows, columns in grids
    ]
    assert len(read_render_reply(request(items, modality)).media) == len(grids)
    assert len(read_token_request(request(items, modality)).prompt.media) == len(grids)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([((1, 4, 4), 5)], "an image of 16 patches has a place of 5 tokens"),
        ([((1, 4, 4), 4), ((1, 4, 6), 7)], "an image of 24 patches has a place of 7 tokens"),
        ([((1, 4, 4), 8)], "an image of 16 patches has a place of 8 tokens"),
        ([((1, 4, 4), 17)], "an image of 16 patches has a place of 17 tokens"),
        ([((0, 4, 4), 4)], "an image of 0 patches"),
        ([((-1, -4, 4), 4)], "an image of 0 patches"),
        ([((1, 14, 22), 77), ((1, 1, 308), 77)], "an image of 1 by 308 patches has no tokens of 2 by 2"),
        ([((308, 1, 1), 77)], "an image of 1 by 1 patches has no tokens of 2 by 2"),
        ([((1, 7, 44), 77)], "an image of 7 by 44 patches"),
        ([((1, 44, 7), 77)], "an image of 44 by 7 patches"),
        ([((2, 7, 22), 77)], "an image of 7 by 22 patches"),
        ([((77, 2, 2), 77)], "an image has 77 frames"),
        ([((1, 4, 4), 4), ((1, 4, 4), 16)], "images have tokens of 1 and 4 patches"),
    ],
)
def test_grids_that_do_not_fit_reach_no_engine(images: list[tuple[Grid, int]], message: str) -> None:
    encoded = request([(told(grid), length) for grid, length in images])
    with pytest.raises(BadRequest, match=message) as refused:
        read_token_request(encoded)
    assert refused.value.param == "features"
    with pytest.raises(RenderReplyError, match=message):
        read_render_reply(encoded)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "no base64",
        b64encode(b"no msgpack").decode(),
        b64encode(msgspec.msgpack.encode({})).decode(),
        b64encode(msgspec.msgpack.encode({"image_grid_thw": 1})).decode(),
        b64encode(msgspec.msgpack.encode({"image_sizes": {"data": ["int64", [2], 1]}})).decode(),
    ],
)
def test_metadata_without_a_grid_says_nothing(metadata: str | None) -> None:
    assert len(read_render_reply(request([(metadata, 3)])).media) == 1


def test_grids_of_videos() -> None:
    metadata = told((2, 4, 6), "video")
    assert read_render_reply(request([(metadata, 12)], "video")).media[0].length == 12
    with pytest.raises(RenderReplyError, match="a video of 48 patches has a place of 13 tokens"):
        read_render_reply(request([(metadata, 13)], "video"))
    with pytest.raises(RenderReplyError, match="a video of 3 by 16 patches has no tokens of 2 by 2"):
        read_render_reply(request([(told((1, 3, 16), "video"), 12)], "video"))


@pytest.mark.parametrize("read", [read_render_reply, read_token_request])
@pytest.mark.parametrize(
    ("modality", "message"),
    [("image", "an image has the grid of a video"), ("video", "a video has the grid of an image")],
)
def test_a_grid_of_the_other_modality(modality: str, message: str, read: Any) -> None:
    other = {"image": "video", "video": "image"}[modality]
    with pytest.raises((RenderReplyError, BadRequest), match=message):
        read(request([(told((1, 4, 4), other), 4)], modality))


def test_tokens_without_embeddings_are_none_of_the_grid() -> None:
    encoded = msgspec.json.decode(request([(told((1, 4, 4)), 6)]))
    [place] = encoded["features"]["mm_placeholders"]["image"]
    place["is_embed"] = [True, True, False, True, True, False]
    assert read_render_reply(msgspec.json.encode(encoded)).media[0].length == 6
    place["is_embed"] = [True] * 6
    with pytest.raises(RenderReplyError, match="an image of 16 patches has a place of 6 tokens"):
        read_render_reply(msgspec.json.encode(encoded))
