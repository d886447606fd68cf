"""Media among a prompt's IDs: what files KV under a prompt tells one image from another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.access import Access, Tenancy
from orchestrator.core.keys import Grant
from orchestrator.core.legs import RenderedPrompt, RenderReplyError, read_render_reply
from orchestrator.core.prefix import block_hashes
from orchestrator.core.token_in import read_token_request
from orchestrator.core.turns import Turn, Turns
from render_tier.protocol.errors import BadRequest
from tests.support.mm_items import of_pixels

PAD = 9
"""The ID of all placeholders."""
IMAGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 9)), max_size=4)
"""Names, how many placeholders each has, and how many IDs of text follow."""


def body(images: list[tuple[str, int, int]], **fields: Any) -> dict[str, Any]:
    """A generate request whose prompt shows ``images``."""
    token_ids, places = [1, 2, 3], []
    for _, length, text in images:
        places.append({"offset": len(token_ids), "length": length})
        token_ids += [PAD] * length + [4] * text
    names = [name for name, _, _ in images]
    features = {
        "mm_hashes": {"image": names},
        "mm_placeholders": {"image": places},
        "kwargs_data": {"image": [of_pixels(name) for name in names]},
        "mm_metadata": None,
    }
    return {"token_ids": token_ids, "sampling_params": {}, "features": features} | fields


def rendered(images: list[tuple[str, int, int]], **fields: Any) -> RenderedPrompt:
    return read_render_reply(msgspec.json.encode(body(images, **fields)))


def seen(images: list[tuple[str, int, int]]) -> list[Any]:
    """What the model is shown, position by position."""
    shown: list[Any] = [1, 2, 3]
    for name, length, text in images:
        shown += [(name, index) for index in range(length)] + [4] * text
    return shown


@given(IMAGES, IMAGES)
def test_prompts_share_the_blocks_of_what_they_both_show(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]
) -> None:
    hashes = [
        block_hashes(p.identified_ids, block=4, max_blocks=99, seed=p.cache_identity)
        for p in (rendered(one), rendered(other))
    ]
    shown = [seen(one), seen(other)]
    common = 0
    while common < min(map(len, shown)) and shown[0][common] == shown[1][common]:
        common += 1
    equal = sum(a == b for a, b in zip(*hashes, strict=False))
    assert equal == common // 4


def test_a_prompt_without_media_is_filed_under_its_ids() -> None:
    prompt = read_render_reply(b'{"token_ids":[1,2],"sampling_params":{},"features":null}')
    assert prompt.media == ()
    assert prompt.identified_ids == [1, 2]


@pytest.mark.parametrize(("image", "found"), [("a", True), ("b", False)])
@pytest.mark.parametrize("text", [0, 100])
def test_a_kept_turn_is_found_for_its_own_image_alone(image: str, found: bool, text: int) -> None:
    """Whether the image is in the turn's whole blocks, or behind them."""
    turns, before = Turns(4), [("a", 1, text)]
    filed = [*rendered(before).identified_ids, *[5] * 70]
    if not text:
        filed[1:1] = [6] * 64
    assert turns.keep(b"", len(filed) - 70, filed, Turn(len(filed), b"{}", "d", 0.0, 99.0))
    ids = [*rendered([(image, 1, text)]).identified_ids, *[5] * 70, 7]
    if not text:
        ids[1:1] = [6] * 64
    assert isinstance(turns.take(b"", ids, 1.0), Turn) is found


WRONG: dict[str, Any] = {
    "another modality": {"mm_placeholders": {"video": [{"offset": 3, "length": 1}]}},
    "data of another modality": {"kwargs_data": {"video": ["x"]}},
    "more places": {"mm_placeholders": {"image": [{"offset": 3, "length": 1}, {"offset": 4, "length": 1}]}},
    "no data": {"kwargs_data": {"image": []}},
    "beyond the prompt": {"mm_placeholders": {"image": [{"offset": 3, "length": 3}]}},
    "overlapping": {
        "mm_hashes": {"image": ["a", "b"]},
        "mm_placeholders": {"image": [{"offset": 3, "length": 2}, {"offset": 4, "length": 1}]},
        "kwargs_data": {"image": ["x", "y"]},
    },
    "nothing": {"mm_placeholders": {"image": [{"offset": 3, "length": 0}]}},
    "a mask of another length": {
        "mm_placeholders": {"image": [{"offset": 3, "length": 2, "is_embed": [True]}]}
    },
    "a mask of numbers": {"mm_placeholders": {"image": [{"offset": 3, "length": 2, "is_embed": [1, 0]}]}},
    "no mask": {"mm_placeholders": {"image": [{"offset": 3, "length": 2, "is_embed": "x"}]}},
    "a mask that leaves nothing": {
        "mm_placeholders": {"image": [{"offset": 3, "length": 2, "is_embed": [False, False]}]}
    },
    "data that are a number": {"kwargs_data": {"image": [1]}},
    "metadata that are a number": {"mm_metadata": {"image": [1]}},
    "metadata that are true": {"mm_metadata": {"image": [True]}},
    "metadata that are a list": {"mm_metadata": {"image": [[]]}},
    "metadata that are an object": {"mm_metadata": {"image": [{}]}},
    "before the prompt": {"mm_placeholders": {"image": [{"offset": -1, "length": 1}]}},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_features_that_do_not_fit_reach_no_engine(fields: dict[str, Any]) -> None:
    request = body([("a", 2, 0)])
    request["features"] |= fields
    encoded = msgspec.json.encode(request)
    with pytest.raises(BadRequest, match=r"features|mm_placeholders"):
        read_token_request(encoded)
    with pytest.raises(RenderReplyError, match=r"features|mm_placeholders"):
        read_render_reply(encoded)


@pytest.mark.parametrize(
    ("data", "lacks"),
    [({"image": [of_pixels("x")]}, False), ({"image": [None]}, True), (None, True)],
)
def test_items_that_are_only_named_are_noticed(data: Any, lacks: bool) -> None:
    request = body([("a", 2, 0)])
    request["features"]["kwargs_data"] = data
    assert read_render_reply(msgspec.json.encode(request)).lacks_data is lacks
    assert read_token_request(msgspec.json.encode(request)).prompt.lacks_data is lacks


def test_tenants_have_names_of_their_own_for_images() -> None:
    """A client may name an image as it likes, also as another's is named."""
    prompt = rendered([("a", 2, 1), ("b", 1, 0), ("a", 2, 0)])
    granted = {
        tenant: Access(Grant(name=tenant, tenant=tenant), Tenancy(b"secret")).granted(prompt)
        for tenant in ("t", "u")
    }
    hashes = {}
    for tenant, given_prompt in granted.items():
        features = msgspec.json.decode(given_prompt.fields["features"])
        hashes[tenant] = features.pop("mm_hashes")["image"]
        assert hashes[tenant] == [item.hash for item in given_prompt.media]
        before = msgspec.json.decode(prompt.fields["features"])
        del before["mm_hashes"]
        assert features == before
    assert hashes["t"][0] == hashes["t"][2] != hashes["t"][1]
    assert set(hashes["t"]).isdisjoint({*hashes["u"], "a", "b"})
