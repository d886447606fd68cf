"""The two generate requests made from a render reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.legs import (
    RenderReplyError,
    can_continue,
    continued,
    decode_leg,
    freeing_leg,
    out_of_vocabulary,
    prefill_leg,
    read_render_replies,
    read_render_reply,
    unsupported_feature,
)
from orchestrator.core.long_strings import written

REPLY: dict[str, Any] = {
    "request_id": "chatcmpl-client",
    "token_ids": [1, 2, 3],
    "features": None,
    "sampling_params": {
        "temperature": 0.5,
        "n": 3,
        "seed": 40,
        "stop": ["END"],
        "stop_token_ids": [7],
        "max_tokens": 100,
        "min_tokens": 10,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "bad_words": [],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "structured_outputs": {"json": {}},
        "future_param": {"a": 1},
        "extra_args": {"kv_transfer_params": {"remote_host": "evil"}, "ec_transfer_params": {}, "x": 1},
    },
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "cache_salt": "s",
    "priority": 3,
    "kv_transfer_params": {"remote_host": "evil"},
    "ec_transfer_params": {"x": 1},
    "reasoning_ended": False,
    "field_of_a_later_version": [1, {"deep": None}],
}
PARAMS = {"do_remote_prefill": True, "remote_host": "p"}


def wire(leg: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(b"".join(written(leg)))
    return decoded


def rendered(**sampling: Any) -> Any:
    reply = REPLY | {"sampling_params": REPLY["sampling_params"] | sampling}
    return read_render_reply(json.dumps(reply).encode())


def test_reading() -> None:
    prompt = rendered()
    assert prompt.token_ids == [1, 2, 3]
    assert (prompt.choices, prompt.max_tokens, prompt.model) == (3, 100, "m")
    assert prompt.stream
    assert prompt.include_usage
    assert prompt.continuous_usage
    assert prompt.has_stop_strings
    assert prompt.wants_prompt_logprobs


LONG_TEXT = "x" * (1 << 16)
FEATURES = {
    "mm_hashes": {"image": ["a"]},
    "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
    "kwargs_data": {"image": [LONG_TEXT]},
}


@pytest.mark.parametrize(
    "reply",
    [
        {"extra_args": {"kwargs_data": 1, "text": LONG_TEXT}},
        {"extra_args": {"kwargs_data": LONG_TEXT}, "features": FEATURES},
        {"features": FEATURES, "cache_salt": LONG_TEXT},
    ],
    ids=["a client's key", "a client's key before images", "behind the images"],
)
def test_long_strings_that_are_no_images_reach_engines_as_they_are(reply: dict[str, Any]) -> None:
    sampling = {"n": 1, "max_tokens": 3, "extra_args": reply.pop("extra_args", None)}
    sent = {"token_ids": [1, 2, 3], "sampling_params": sampling, **reply}
    prompt = read_render_reply(json.dumps(sent, separators=(",", ":")).encode())
    leg = wire(decode_leg(prompt, "r", 0, None, "top"))
    assert leg["sampling_params"]["extra_args"] == sampling["extra_args"]
    assert {name: leg[name] for name in reply} == reply


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"token_ids":[],"sampling_params":{}}', b'{"token_ids":["1"],"sampling_params":{}}',
     b'{"token_ids":[1]}', b'{"token_ids":[1],"sampling_params":[]}', b"\xff", b'{"token_ids":[1.5]}',
     b'{"token_ids":[1],"sampling_params":{},"x":%b0%b}' % (b"[" * 100_000, b"]" * 100_000)],
    ids=lambda body: body[:40].decode("latin-1"),
)  # fmt: skip
def test_a_reply_that_is_not_a_generate_request(body: bytes) -> None:
    with pytest.raises(RenderReplyError):
        read_render_reply(body)
    with pytest.raises(RenderReplyError):
        read_render_replies(b"[" + body + b"]")
    with pytest.raises(RenderReplyError):
        read_render_replies(b"{}")


def test_prefill_leg_ends_by_length_after_one_token_whatever_the_client_asked() -> None:
    leg = wire(prefill_leg(rendered(), "leg-1", "top"))
    sampling = leg["sampling_params"]
    assert {k: sampling[k] for k in ("n", "max_tokens", "min_tokens", "ignore_eos")} == {
        "n": 1,
        "max_tokens": 1,
        "min_tokens": 0,
        "ignore_eos": True,
    }
    for gone in ("stop", "stop_token_ids", "logprobs", "structured_outputs", "include_stop_str_in_output"):
        assert gone not in sampling
    assert leg["stream"] is False
    assert leg["stream_options"] is None
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert sampling["prompt_logprobs"] == 1


def test_decode_leg_is_the_clients_request_for_one_choice() -> None:
    leg = wire(decode_leg(rendered(), "leg-2", 2, PARAMS, "top"))
    sampling = leg["sampling_params"]
    assert "stop" not in sampling
    assert "prompt_logprobs" not in sampling
    assert sampling["seed"] == 42
    assert sampling["n"] == 1
    for kept in (
        "max_tokens",
        "min_tokens",
        "stop_token_ids",
        "logprobs",
        "structured_outputs",
        "temperature",
    ):
        assert sampling[kept] == REPLY["sampling_params"][kept]
    assert leg["kv_transfer_params"] == PARAMS
    assert leg["stream"] is True


def test_freeing_leg_pulls_and_makes_one_token() -> None:
    leg = wire(freeing_leg(rendered(), "leg-3", PARAMS, "both"))
    assert leg["sampling_params"]["max_tokens"] == 1
    assert leg["kv_transfer_params"] == leg["sampling_params"]["extra_args"]["kv_transfer_params"] == PARAMS
    assert leg["stream"] is False


@pytest.mark.parametrize("make", [
    lambda p: prefill_leg(p, "i", "top"),
    lambda p: decode_leg(p, "i", 0, PARAMS, "top"),
    lambda p: freeing_leg(p, "i", PARAMS, "top"),
])  # fmt: skip
def test_every_leg_keeps_unknown_fields_and_the_prompt_and_drops_the_clients_transfer_params(
    make: Any,
) -> None:
    leg = wire(make(rendered()))
    assert leg["token_ids"] == [1, 2, 3]
    assert leg["request_id"] == "i"
    for name in (
        "model",
        "cache_salt",
        "priority",
        "reasoning_ended",
        "field_of_a_later_version",
        "features",
    ):
        assert leg[name] == REPLY[name]
    assert leg["sampling_params"]["future_param"] == {"a": 1}
    assert leg["sampling_params"]["extra_args"] == {"x": 1}
    assert "ec_transfer_params" not in leg
    assert "evil" not in json.dumps(leg)


@pytest.mark.parametrize(
    ("placement", "top", "extra"), [("top", True, False), ("extra_args", False, True), ("both", True, True)]
)
def test_placement_of_the_params(placement: Any, top: bool, extra: bool) -> None:
    for leg in (prefill_leg(rendered(), "i", placement), decode_leg(rendered(), "i", 0, PARAMS, placement)):
        sent = wire(leg)
        assert (sent.get("kv_transfer_params") is not None) == top
        assert ("kv_transfer_params" in sent["sampling_params"]["extra_args"]) == extra
        assert sent["sampling_params"]["extra_args"]["x"] == 1


def test_a_decode_without_kv_carries_no_params_at_all() -> None:
    leg = wire(decode_leg(rendered(), "i", 0, None, "both"))
    assert "kv_transfer_params" not in leg
    assert leg["sampling_params"]["extra_args"] == {"x": 1}


def test_absent_max_tokens_is_the_renderers_default_of_sixteen() -> None:
    reply = dict(REPLY, sampling_params={"temperature": 0})
    prompt = read_render_reply(json.dumps(reply).encode())
    assert wire(decode_leg(prompt, "i", 0, None, "top"))["sampling_params"]["max_tokens"] == 16


def test_whole_decode_keeps_prompt_logprobs() -> None:
    leg = wire(decode_leg(rendered(), "i", 0, None, "top", whole=True))
    assert leg["stream"] is False
    assert leg["sampling_params"]["prompt_logprobs"] == 1


@given(st.integers(-(2**63), 2**63 - 1), st.integers(2, 128))
def test_seeds_of_choices_differ_and_stay_in_int64(seed: int, n: int) -> None:
    prompt = rendered(seed=seed)
    seeds = [decode_leg(prompt, "i", k, None, "top")["sampling_params"]["seed"] for k in range(n)]
    assert len(set(seeds)) == n
    assert all(-(2**63) <= value < 2**63 for value in seeds)
    assert seeds[0] == seed


def test_no_seed_stays_no_seed() -> None:
    assert decode_leg(rendered(seed=None), "i", 3, None, "top")["sampling_params"]["seed"] is None


@pytest.mark.parametrize(
    ("sampling", "capabilities", "feature"),
    [
        ({"structured_outputs": {"json": {}}}, (), "structured_outputs"),
        ({"structured_outputs": {"json": {}}}, ("structured_outputs",), None),
        ({"bad_words": ["x"]}, (), "bad_words"),
        ({"bad_words": []}, (), None),
        ({"thinking_token_budget": 5}, (), "thinking_token_budget"),
        ({"thinking_token_budget": -1}, (), None),
        ({"structured_outputs": None}, (), None),
        ({}, (), None),
    ],
)
def test_features_that_engines_lack(sampling: dict[str, Any], capabilities: Any, feature: str | None) -> None:
    assert unsupported_feature(sampling, capabilities) == feature


def test_vocabulary_bound() -> None:
    assert out_of_vocabulary([0, 9], 10) is None
    assert out_of_vocabulary([0, 10], 10) == 10
    assert out_of_vocabulary([-1], 10) == -1


# ---- going on elsewhere ------------------------------------------------------------------------------------


def test_output_becomes_prompt_with_what_is_left_of_the_limits() -> None:
    prompt = rendered(max_tokens=100, min_tokens=10)
    further = continued(prompt, [8, 9])
    for leg in (prefill_leg(further, "p", "top"), decode_leg(further, "d", 0, PARAMS, "top")):
        assert wire(leg)["token_ids"] == [1, 2, 3, 8, 9]
    sampling = wire(decode_leg(further, "d", 0, PARAMS, "top"))["sampling_params"]
    assert (sampling["max_tokens"], sampling["min_tokens"]) == (98, 8)
    assert prompt.token_ids == [1, 2, 3], "derender still has the prompt as it was"
    assert continued(prompt, [8] * 50).sampling["min_tokens"] == 0


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        ({"structured_outputs": None}, True),
        ({"structured_outputs": {"json": {}}}, False),
        ({"structured_outputs": None, "frequency_penalty": 0.0, "thinking_token_budget": -1}, True),
        ({"structured_outputs": None, "frequency_penalty": -0.5}, False),
        ({"structured_outputs": None, "thinking_token_budget": 10}, False),
    ],
)
def test_sampling_that_looks_back_at_the_output_cannot_go_on_elsewhere(
    sampling: dict[str, Any], possible: bool
) -> None:
    assert can_continue(rendered(**sampling)) is possible
