"""What a client may try with states: every attempt is a 400 that says why, whoever's state it was."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.protocol.errors import ApiError, BadRequest
from tests.render_tier.derendering.conftest import Client, Served

Make = Callable[..., Client]
Bytes = Callable[[bytes], bytes]
TAG = 16
KEYS = (b"first secret", b"second secret")


def raw(state: Any) -> bytes:
    return base64.urlsafe_b64decode(state["s"])


def packed(data: bytes) -> dict[str, Any]:
    return {"v": 1, "s": base64.urlsafe_b64encode(data).decode()}


def retagged(payload: bytes, key: bytes = b"") -> dict[str, Any]:
    """As somebody who knows the format, but no key, would tag it."""
    hashed = hashlib.blake2b(key, person=b"state-key").digest() if key else b""
    tag = hashlib.blake2b(payload, key=hashed, digest_size=TAG, person=b"stream-state").digest()
    return packed(tag + payload)


def edited(state: Any, place: int, value: Any) -> bytes:
    fields = msgspec.msgpack.decode(raw(state)[TAG:])
    fields[place] = value
    return msgspec.msgpack.encode(fields)


@pytest.fixture
def keyed(client: Make) -> Client:
    return client(state_keys=KEYS[:1])


@pytest.fixture
def state(keyed: Client) -> Any:
    return keyed.chunk(keyed.encode("<think>so far"))["stream_state"]


def refused(who: Client, state: Any, reason: str, **more: Any) -> None:
    with pytest.raises(BadRequest, match=reason) as error:
        who.chunk([1], state, **more)
    assert error.value.status == 400
    assert error.value.param == "stream_state"


def test_the_test_tags_as_the_codec_does(keyed: Client, state: Any) -> None:
    assert retagged(raw(state)[TAG:], KEYS[0]) == state


@pytest.mark.parametrize("key", [b"", b"first secre", b"second secret"])
def test_forged(keyed: Client, state: Any, key: bytes) -> None:
    # The 7th field counts tokens: the forger would like to have been charged for none.
    refused(keyed, retagged(edited(state, 6, 0), key), "another key")


@pytest.mark.parametrize("place", range(15))
def test_every_field_is_protected(keyed: Client, state: Any, place: int) -> None:
    value = msgspec.msgpack.decode(raw(state)[TAG:])[place]
    other = {int: 7, bool: not value, bytes: b"\0" * 8, list: [None]}[type(value)]
    refused(keyed, packed(raw(state)[:TAG] + edited(state, place, other)), "another key")


def test_spliced(keyed: Client, state: Any) -> None:
    later = keyed.chunk(keyed.encode(" and on"), state)["stream_state"]
    refused(keyed, packed(raw(state)[:TAG] + raw(later)[TAG:]), "another key")
    spliced = {raw(later)[:cut] + raw(state)[cut:] for cut in range(len(raw(state)))}
    spliced -= {raw(state), raw(later)}
    assert len(spliced) > TAG
    for data in spliced:
        refused(keyed, packed(data), "another key")


def test_truncated_and_lengthened(keyed: Client, state: Any) -> None:
    data = raw(state)
    for cut in range(len(data)):
        refused(keyed, packed(data[:cut]), "damaged")
    refused(keyed, packed(data + b"\0"), "damaged")


def test_swapped_for_another_stream_of_the_same_request(keyed: Client, state: Any) -> None:
    other = dataclasses.replace(keyed, request_id="chatcmpl-2")
    refused(other, state, "another stream")
    other.chunk([1])
    refused(other, state, "another stream")


def test_an_attempt_on_a_stream_does_not_disturb_it(keyed: Client, state: Any) -> None:
    expected = keyed.chunk([1], state)
    state_again = keyed.chunk(keyed.encode("<think>so far"))["stream_state"]
    assert state_again == state
    refused(dataclasses.replace(keyed, request_id="chatcmpl-2"), state, "another stream")
    refused(keyed, state, "choice 0, not 1", index=1)
    assert keyed.chunk([1], state) == expected


def test_repeated_is_answered_alike_and_out_of_place_is_refused(keyed: Client, state: Any) -> None:
    def at(position: int, ids: list[int]) -> dict[str, Any]:
        chunk = {"request_id": keyed.request_id, "position": position, "choices": [{"token_ids": ids}]}
        return {"generate_chunk": chunk}

    tokens = len(keyed.encode("<think>so far"))
    first = keyed.chunk([], state, more=at(tokens, [5]))
    assert keyed.chunk([], state, more=at(tokens, [5])) == first
    # An older state with a newer chunk would lose a token, a newer one with an older chunk repeat it.
    refused(keyed, state, f"position {tokens}, the chunk of {tokens + 1}", more=at(tokens + 1, [6]))
    refused(keyed, first["stream_state"], f"position {tokens + 1}", more=at(tokens, [5]))
    refused(keyed, None, "position 0", more=at(3, [5]))


def test_of_another_model_configuration_or_key(keyed: Client, served: Served, state: Any) -> None:
    parsers = {"reasoning_parser": "qwen3", "tool_parser": "hermes"}
    others = [
        (dataclasses.replace(served, fingerprint="two"), DerenderSettings(**parsers, state_keys=KEYS[:1]),
         "another model"),
        (served, DerenderSettings(reasoning_parser="qwen3", state_keys=KEYS[:1]), "another model"),
        (served, DerenderSettings(**parsers, state_keys=KEYS[1:]), "another key"),
        (served, DerenderSettings(**parsers), "another key"),
    ]  # fmt: skip
    for model, options, reason in others:
        refused(dataclasses.replace(keyed, derenderer=Derenderer(model, options)), state, reason)


def test_without_a_key_a_keyed_server_takes_no_state(client: Make, keyed: Client) -> None:
    refused(keyed, client().chunk([1])["stream_state"], "another key")


def test_keys_are_changed_while_streams_run(client: Make) -> None:
    """Add the new key behind the old one everywhere, put it first everywhere, then drop the old one."""
    replicas = [client(state_keys=keys) for keys in (KEYS[:1], KEYS, KEYS[::-1], KEYS[1:])]
    unkeyed = client()
    pieces = [[number] for number in unkeyed.encode("<think>one two three</think>four five six")]
    plain = unkeyed.stream(pieces)
    state = None
    for number, piece in enumerate(pieces):
        finish = "stop" if number == len(pieces) - 1 else None
        phase = min(number * 4 // len(pieces), 3)
        answer = replicas[phase].chunk(piece, state, finish)
        # Until all know the new key the old one signs; each phase reads what its neighbours write.
        replicas[max(phase - 1, 0) if phase != 2 else 1].chunk(piece, state, finish)
        state = answer["stream_state"]
        assert answer["chunk"] == plain[number]["chunk"]
    refused(replicas[0], replicas[3].chunk([1])["stream_state"], "another key")


def test_a_long_key_counts_to_its_last_byte(client: Make) -> None:
    one, other = client(state_keys=(b"k" * 100 + b"1",)), client(state_keys=(b"k" * 100 + b"2",))
    refused(other, one.chunk([1])["stream_state"], "another key")


@pytest.mark.parametrize("size", [40_000, 1_200_000])
def test_oversized(client: Make, size: int) -> None:
    who = client(state_keys=KEYS[:1], max_state_bytes=1 << 20)
    refused(who, {"v": 1, "s": "A" * size}, "damaged" if size < 1 << 20 else "longer than")


@pytest.mark.parametrize("index", [-1, 1 << 60, 1.5, "0", None, [0], True])
def test_an_index_that_is_none(keyed: Client, state: Any, index: Any) -> None:
    with pytest.raises(ApiError) as error:
        keyed.chunk([1], state, index=index)
    assert error.value.status == 400


def test_choices_cannot_be_merged(keyed: Client, state: Any) -> None:
    choices = [{"index": 0, "token_ids": [1]}, {"index": 1, "token_ids": [1]}]
    with pytest.raises(BadRequest, match="at most one choice"):
        keyed.chunk([], state, more={"generate_chunk": {"request_id": keyed.request_id, "choices": choices}})


def test_output_beyond_the_models_length(client: Make) -> None:
    who = client(state_keys=KEYS[:1])
    room = 4096 - len(who.prompt)
    state = who.chunk([1] * (room - 1))["stream_state"]
    with pytest.raises(BadRequest, match="exceeds max_model_len"):
        who.chunk([1, 1], state)
    full = who.chunk([1], state)["stream_state"]
    with pytest.raises(BadRequest, match="exceeds max_model_len"):
        who.chunk([1], full)
    with pytest.raises(BadRequest, match="exceeds max_model_len"):
        who.whole([1] * 4097)


def test_a_refusal_tells_no_secret(keyed: Client, state: Any) -> None:
    with pytest.raises(BadRequest) as error:
        keyed.chunk([1], retagged(edited(state, 6, 0)))
    assert b"secret" not in json.dumps(error.value.message).encode()
