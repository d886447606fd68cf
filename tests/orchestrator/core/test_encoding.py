"""Images and encoders: who is sent what, which answers count, and that every image comes to an end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.encoding import (
    FanOut,
    Image,
    UnusableEncoding,
    encode_leg,
    images_of,
    read_encoding,
    with_encodings,
)
from orchestrator.core.legs import RenderedPrompt, decode_leg, prefill_leg, read_render_reply
from orchestrator.core.long_strings import written

FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["a", "b", "a"], "video": ["v"]},
    "mm_placeholders": {
        "image": [
            {"offset": 6, "length": 2},
            {"offset": 1, "length": 1},
            {"offset": 3, "length": 2, "is_embed": [True, False]},
        ],
        "video": [{"offset": 9, "length": 1}],
    },
    "kwargs_data": {"image": ["QQ==", "Qg==", "QQ=="], "video": ["Vg=="]},
    "mm_metadata": {"image": ["QW0=", None, "QW0="], "video": ["Vm0="]},
    "of_a_later_version": [1],
}


def prompt(**features: Any) -> RenderedPrompt:
    reply = {
        "token_ids": list(range(100, 110)),
        "sampling_params": {"temperature": 1.5, "stop": ["x"]},
        "features": FEATURES | features,
        "model": "m",
        "cache_salt": "s",
    }
    return read_render_reply(json.dumps(reply).encode())


def sent(request: dict[str, Any]) -> Any:
    return json.loads(b"".join(written(request)))


def test_an_encoder_is_sent_one_image_alone() -> None:
    images = images_of(prompt())
    assert [(image.hash, image.place["offset"]) for image in images] == [("b", 1), ("a", 3), ("v", 9)]
    leg = sent(encode_leg(prompt(), images[1], "id"))
    assert leg["token_ids"] == [103, 104]
    assert leg["features"] == {
        "mm_hashes": {"image": ["a"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 2, "is_embed": [True, False]}]},
        "kwargs_data": {"image": ["QQ=="]},
        "mm_metadata": {"image": ["QW0="]},
    }
    assert (leg["model"], leg["cache_salt"], leg["request_id"], leg["stream"]) == ("m", "s", "id", False)
    assert leg["sampling_params"]["max_tokens"] == 1
    assert "stop" not in leg["sampling_params"]


def test_without_metadata_an_encoder_is_sent_none() -> None:
    bare = prompt(mm_metadata=None)
    leg = sent(encode_leg(bare, images_of(bare)[0], "id"))
    assert leg["features"]["mm_metadata"] == {"image": [None]}


def test_long_data_and_metadata_are_sent_themselves() -> None:
    """Not what stands for them inside."""
    long = "QUJD" * 20_000
    reply = json.dumps(
        {
            "token_ids": [7],
            "sampling_params": {},
            "features": {
                "mm_hashes": {"image": ["a"]},
                "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
                "kwargs_data": {"image": [long]},
                "mm_metadata": {"image": [long]},
            },
        },
        separators=(",", ":"),
    )
    rendered = read_render_reply(reply.encode())
    [image] = images_of(rendered)
    features = sent(encode_leg(rendered, image, "id"))["features"]
    assert (features["kwargs_data"], features["mm_metadata"]) == ({"image": [long]}, {"image": [long]})


def test_the_engine_gets_what_is_left_to_it() -> None:
    told = {"a": {"where": "x"}, "b": {"where": "y"}}
    known = with_encodings(prompt(), images_of(prompt()), told, "metadata")
    leg = sent(prefill_leg(known, "id", "top"))
    assert leg["ec_transfer_params"] == told
    # There is no metadata of b, and no encoding of v.
    assert leg["features"] == FEATURES | {"kwargs_data": {"image": [None, "Qg==", None], "video": ["Vg=="]}}
    whole = sent(prefill_leg(with_encodings(prompt(), images_of(prompt()), told, "whole"), "id", "both"))
    assert whole["features"] == FEATURES
    assert whole["sampling_params"]["extra_args"]["ec_transfer_params"] == told
    assert whole["ec_transfer_params"] == told
    assert with_encodings(prompt(), images_of(prompt()), {}, "metadata") == prompt()


def test_other_legs_are_told_nothing_of_encoders() -> None:
    reply = {"token_ids": [1], "sampling_params": {"extra_args": {"ec_transfer_params": {"a": {}}}},
             "ec_transfer_params": {"a": {}}}  # fmt: skip
    foreign = read_render_reply(json.dumps(reply).encode())
    for leg in (prefill_leg(foreign, "id", "both"), decode_leg(foreign, "id", 0, {"k": 1}, "both")):
        assert "a" not in json.dumps(sent(leg).get("ec_transfer_params", {}))
        assert "ec_transfer_params" not in (leg["sampling_params"]["extra_args"] or {})


IMAGE = Image("image", "a", {"offset": 0, "length": 1}, msgspec.Raw(b'"QQ=="'), msgspec.Raw(b"null"))


@pytest.mark.parametrize("params", [None, {}, {"b": {}}, {"a": {}, "b": {}}, {"a": None}, {"a": [1]}])
def test_what_is_not_of_the_image_alone_is_no_encoding(params: Any) -> None:
    with pytest.raises(UnusableEncoding):
        read_encoding(IMAGE, params)
    assert read_encoding(IMAGE, {"a": {"where": "x"}}) == {"where": "x"}


Outcome = st.sampled_from(["encoded", "safe", "unsafe"])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.lists(Outcome, max_size=40), st.randoms())
def test_every_image_comes_to_an_end_within_its_bounds(
    count: int, attempts: int, at_once: int, outcomes: list[str], random: Any
) -> None:
    images = [replace(IMAGE, hash=str(number)) for number in range(count)]
    fan_out = FanOut(images, attempts, at_once)
    begun = {image.hash: 0 for image in images}
    ended: list[str] = []
    under_way: list[Image] = []
    while not fan_out.over:
        for image in fan_out.begin():
            begun[image.hash] += 1
            under_way.append(image)
        assert 0 < len(under_way) <= at_once
        image = under_way.pop(random.randrange(len(under_way)))
        outcome = outcomes.pop() if outcomes else "encoded"
        if outcome == "encoded":
            fan_out.encoded(image, {"of": image.hash})
        elif fan_out.failed(image, retry_safe=outcome == "safe"):
            assert begun[image.hash] < attempts
            continue
        ended.append(image.hash)
    assert fan_out.begin() == []
    assert sorted(ended) == sorted(begun), "each ends once"
    assert all(1 <= number <= attempts for number in begun.values())
    assert all(encoding == {"of": name} for name, encoding in fan_out.encodings.items())
