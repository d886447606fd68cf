"""Images that engines are given as files: what engines are sent, and what everything here goes by."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.access import Access, Tenancy
from orchestrator.core.keys import Grant
from orchestrator.core.legs import (
    RenderReplyError,
    continued,
    decode_leg,
    named_apart,
    prefill_leg,
    read_render_reply,
)
from orchestrator.core.long_strings import LONG, written

PLACES = [
    {"offset": 1, "length": 1, "token_ids": [9, 9, 8]},
    {"offset": 2, "length": 2, "token_ids": [9, 8]},
]
PARTS = [{"type": "image_url", "uuid": name, "url": f"data:,{name}"} for name in ("aa", "bb")]
REPLY: dict[str, Any] = {
    "token_ids": [1, 9, 9, 8, 2],
    "sampling_params": {"max_tokens": 5},
    "features": None,
    "content_parts": PARTS,
    "content_places": PLACES,
}
WHOLE = [1, 9, 9, 8, 9, 8, 2]


def read(**changed: Any) -> Any:
    return read_render_reply(msgspec.json.encode(REPLY | changed))


def sent(leg: dict[str, Any]) -> dict[str, Any]:
    wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(leg))
    return wire


LONG_URL = "data:," + "A" * LONG


@pytest.mark.parametrize("name", ["bb", "b" * LONG], ids=["", "long name"])
def test_a_long_file_is_sent_from_where_it_is(name: str) -> None:
    parts = [PARTS[0], {"type": "image_url", "uuid": name, "url": LONG_URL}]
    prompt = read(content_parts=parts)
    assert [item.hash for item in prompt.media] == ["aa", name]
    assert [item.data_bytes for item in prompt.media] == [len(msgspec.json.encode(part)) for part in parts]
    assert prompt.features_bytes == sum(item.data_bytes for item in prompt.media)
    assert not prompt.lacks_data
    assert prompt.strings == (), "no data of features"
    access = Access(Grant(name="k", tenant="t"), Tenancy(b"secret"))
    for asked in (prompt, continued(prompt, [4]), named_apart(prompt), access.granted(prompt)):
        pieces = written(decode_leg(asked, "r", 0, None, "top"))
        assert any(isinstance(piece, memoryview) for piece in pieces) == (name == "bb")
        leg = json.loads(b"".join(pieces))
        assert [part["url"] for part in leg["content_parts"]] == [PARTS[0]["url"], LONG_URL]
        assert [part["uuid"] for part in leg["content_parts"]] == [item.hash for item in asked.media]
        assert leg["token_ids"][:5] == REPLY["token_ids"]
        assert "content_places" not in leg


@pytest.mark.parametrize("key", ["content_parts", "kwargs_data"])
@pytest.mark.parametrize("value", ["x", "x" * LONG], ids=["short", "long"])
def test_a_clients_key_of_the_same_name_does_not_matter(key: str, value: str) -> None:
    parts = [PARTS[0], PARTS[1] | {"url": LONG_URL}]
    given = {"kv_transfer_params": {key: [value]}} | REPLY | {"content_parts": parts}
    prompt = read_render_reply(msgspec.json.encode(given))
    pieces = written(decode_leg(prompt, "r", 0, None, "top"))
    assert any(isinstance(piece, memoryview) for piece in pieces) == (value == "x")
    assert json.loads(b"".join(pieces))["content_parts"] == parts


def test_engines_are_sent_files_and_all_else_goes_by_the_prompt_that_they_make() -> None:
    prompt = read()
    assert prompt.token_ids == json.loads(bytes(prompt.fields["token_ids"])) == WHOLE
    assert [(item.hash, item.offset, item.length) for item in prompt.media] == [("aa", 1, 3), ("bb", 4, 2)]
    assert not prompt.lacks_data
    assert prompt.features_bytes == sum(len(msgspec.json.encode(part)) for part in PARTS)
    for leg in (prefill_leg(prompt, "r", "top"), decode_leg(prompt, "r", 0, None, "top")):
        wire = sent(leg)
        assert (wire["token_ids"], wire["content_parts"]) == (REPLY["token_ids"], PARTS)
        assert wire["features"] is None
        assert "content_places" not in wire


def test_output_that_is_gone_on_from_follows_what_was_sent() -> None:
    prompt = continued(read(), [9, 5])
    assert prompt.token_ids == [*WHOLE, 9, 5]
    assert sent(prefill_leg(prompt, "r", "top"))["token_ids"] == [*REPLY["token_ids"], 9, 5]
    assert continued(read(), []).pictures == read().pictures


def test_a_file_is_known_to_engines_by_the_name_that_all_here_know_it_by() -> None:
    access = Access(Grant(name="k", tenant="t"), Tenancy(b"secret"))
    for prompt in (named_apart(read()), access.granted(read())):
        names = [item.hash for item in prompt.media]
        assert not {"aa", "bb"} & set(names)
        parts = sent(prefill_leg(prompt, "r", "top"))["content_parts"]
        assert parts == [part | {"uuid": name} for part, name in zip(PARTS, names, strict=True)]


def test_a_file_that_is_only_named_is_no_data() -> None:
    assert read(content_parts=[PARTS[0], PARTS[1] | {"url": None}]).lacks_data


@pytest.mark.parametrize(
    "changed",
    [
        {"content_places": None},
        {"content_places": PLACES[:1]},
        {"content_places": PLACES[::-1]},
        {"content_places": [PLACES[0], PLACES[1] | {"offset": 4}]},
        {"content_places": [PLACES[0], PLACES[1] | {"length": 0}]},
        {"content_places": [PLACES[0], PLACES[1] | {"token_ids": []}]},
        {"content_parts": [PARTS[0], {"type": "image_url", "url": "data:,"}]},
        {"content_parts": [PARTS[0], 7]},
        {"content_parts": {}},
    ],
)
def test_places_that_do_not_belong_to_the_prompt_are_renders_fault(changed: dict[str, Any]) -> None:
    with pytest.raises(RenderReplyError):
        read(**changed)


@given(st.lists(st.tuples(st.lists(st.integers(0, 7), max_size=3), st.lists(st.just(9), min_size=1))))
def test_every_prompt_is_put_together_from_its_text_and_its_files(
    pieces: list[tuple[list[int], list[int]]],
) -> None:
    token_ids, whole, places = [1], [1], []
    for text, shown in pieces:
        token_ids += text
        places.append({"offset": len(token_ids), "length": 1, "token_ids": shown})
        token_ids.append(9)
        whole += text + shown
    parts = [PARTS[0] | {"uuid": str(number)} for number in range(len(pieces))]
    prompt = read(token_ids=token_ids, content_parts=parts, content_places=places)
    assert prompt.token_ids == whole
    assert [whole[item.offset : item.offset + item.length] for item in prompt.media] == [
        shown for _, shown in pieces
    ]
    assert replace(prompt, pictures=None).identified_ids == prompt.identified_ids
