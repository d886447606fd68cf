"""What a key changes about a request: salts, sessions, limits; and what of an engine's words is public."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.access import Access, Tenancy
from orchestrator.core.keys import Grant
from orchestrator.core.legs import read_render_reply
from orchestrator.core.prefix import block_hashes
from orchestrator.core.redaction import REMOVED, public_message, public_param, public_type
from render_tier.protocol.errors import ApiError

TENANCY = Tenancy(b"secret")
TEXTS = st.text(max_size=20)


def access(tenant: str = "t", **limits: Any) -> Access:
    return Access(Grant("name", tenant, **limits), TENANCY)


def rendered(**fields: Any) -> Any:
    body = {"token_ids": list(range(200)), "sampling_params": {"max_tokens": 50}, "model": "m"} | fields
    return read_render_reply(msgspec.json.encode(body))


@given(st.tuples(TEXTS, st.none() | TEXTS), st.tuples(TEXTS, st.none() | TEXTS))
def test_salts_are_equal_for_the_same_tenant_and_own_salt_alone(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    assert (TENANCY.salt(*one) == TENANCY.salt(*other)) is (one == other)


def test_a_salt_is_nothing_that_a_client_can_write_or_compute() -> None:
    salt = TENANCY.salt("t", None)
    assert salt != Tenancy(b"another").salt("t", None)
    # What it sends as its own salt goes in as an input.
    assert TENANCY.salt("other", salt) != salt
    assert len(salt) == 64
    assert salt != TENANCY.session("t", "s")


@pytest.mark.parametrize("own", [None, "mine"])
def test_prompts_of_different_tenants_share_no_block_of_any_index(own: str | None) -> None:
    prompt = rendered(cache_salt=own)
    seen = [access(tenant).granted(prompt) for tenant in ("a", "b", "a")]
    hashes = [
        block_hashes(p.token_ids, block=16, max_blocks=9, seed=p.cache_identity) for p in (*seen, prompt)
    ]
    assert hashes[0] == hashes[2]
    assert set(hashes[0]).isdisjoint(hashes[1])
    assert set(hashes[0]).isdisjoint(hashes[3])


def test_sessions_of_different_tenants_are_different_ones() -> None:
    assert access("a").session("s") == access("a").session("s") != access("b").session("s")
    assert access("a").session(None) is None


def test_the_own_salt_still_keeps_a_tenants_users_apart() -> None:
    """Also what engines keep of their images, under no salt."""
    image = {"mm_hashes": {"image": ["cat"]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}}
    given_on = [access().granted(rendered(cache_salt=s, features=image)) for s in ("u1", "u2", None)]
    assert len({bytes(prompt.fields["cache_salt"]) for prompt in given_on}) == 3
    assert len({bytes(prompt.fields["features"]) for prompt in given_on}) == 3


def test_headers_that_steer_engines_are_not_passed_on() -> None:
    given_headers = {
        "x-vllm-priority": "-9",
        "x-data-parallel-rank": "0",
        "x-session-id": "s",
        "baggage": "b",
    }
    forwarded = access().forwarded(given_headers)
    assert forwarded == {"x-session-id": access().session("s"), "baggage": "b"}
    assert "priority" not in access().granted(rendered(priority=-9)).fields


@pytest.mark.parametrize(
    ("limits", "fields", "status"),
    [
        ({}, {}, None),
        ({"models": frozenset({"m"})}, {"model": "m"}, None),
        ({"models": frozenset({"m"})}, {"model": "n"}, 404),
        ({"models": frozenset({"m"})}, {}, 400),
        ({"models": frozenset()}, {"model": "m"}, 404),
        ({"max_tokens": 5}, {"max_tokens": 5}, None),
        ({"max_tokens": 5}, {}, None),
        ({"max_tokens": 5}, {"max_tokens": 6}, 400),
        ({"max_tokens": 5}, {"max_tokens": 6.5}, 400),
        ({"max_tokens": 5}, {"max_completion_tokens": 6}, 400),
        ({"max_tokens": 5}, {"max_output_tokens": 6}, 400),
        ({"max_tokens": 5}, {"min_tokens": 6}, 400),
        ({"max_tokens": 5}, {"max_tokens": "six"}, None),
    ],
)
def test_what_a_key_does_not_allow_is_refused(
    limits: dict[str, Any], fields: dict[str, Any], status: int | None
) -> None:
    if status is None:
        access(**limits).check(fields)
        return
    with pytest.raises(ApiError) as raised:
        access(**limits).check(fields)
    assert raised.value.status == status


def test_output_that_was_not_bounded_by_the_client_is_by_its_key() -> None:
    assert access(max_tokens=7).granted(rendered()).max_tokens == 7
    assert access(max_tokens=70).granted(rendered()).max_tokens == 50
    assert access(max_tokens=7).granted(rendered(sampling_params={})).max_tokens == 7


INSIDE = [
    "http://10.1.2.3:8000/x",
    "tcp://prefill-0:5600",
    "10.1.2.3",
    "10.1.2.3:5600",
    "[fd00::1]:5600",
    "fd00:1:2::7",
    "::1",
    "prefill-0:5600",
    "prefill-0.prefill.svc.cluster.local",
    "node7.internal",
    "8c5e6a1e-7b0f-4f0f-9d55-0a4c3c9b2f11",
    "cmpl-0123456789abcdef01234567-0p1",
    "remote_engine_id=prefill-0",
    "'remote_host': 'p0'",
    "remote_block_ids",
    "kv_transfer_params",
    "engine p0",
    "/opt/models/secret/config.json",
]


@pytest.mark.parametrize("inside", INSIDE)
def test_addresses_ids_and_transfer_fields_are_taken_out(inside: str) -> None:
    shown = public_message(f"Refused by {inside}, because of 3 tokens")
    assert REMOVED in shown
    assert shown.startswith("Refused by ")
    assert shown.endswith(", because of 3 tokens")
    for word in inside.replace("'", " ").replace("=", " ").replace(": ", " ").split():
        assert word.strip() not in shown or word in ("p0",)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens must be at least 1, got 0.",
        "token id 99999 is out of vocabulary (0 to 49151)",
        "Requested 20 logprobs: at most 5. See the model's limits; ratio 16:9, at 12:30.",
        "temperature: 2.5 is too high (allowed: 0..2)",
        "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens.",
    ],
)
def test_what_is_about_the_request_stays(message: str) -> None:
    assert public_message(message) == message


@pytest.mark.parametrize(
    "piece", ["a", "a-", "a.", "1.", ":", "a:", "/a", "0123456789abcde-", "::", "remote_"]
)
def test_no_message_takes_long(piece: str) -> None:
    assert len(public_message(piece * 1_000_000)) < 5000


def test_type_and_param_are_names() -> None:
    assert public_type("BadRequestError") == "BadRequestError"
    assert public_type("Bad Request") == "Bad Request"
    assert public_type("http://10.0.0.1") == ""
    assert public_param("sampling_params.n") == "sampling_params.n"
    assert public_param("tools[0].function") == "tools[0].function"
    assert public_param("10.0.0.1") is None
    assert public_param(None) is None
