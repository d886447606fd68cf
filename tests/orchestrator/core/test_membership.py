"""Members as sources say it: merged, compared, read from a file and from EndpointSlices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.capabilities import Facts
from orchestrator.core.membership import (
    EndpointSlices,
    Expired,
    MembershipError,
    MemberSpec,
    base_url,
    change,
    from_file,
    merged,
)


def spec(url: str, **fields: Any) -> MemberSpec:
    return MemberSpec("decode", url, **fields)


def test_of_a_member_named_twice_the_first_counts() -> None:
    both = merged([[spec("http://a", generation="1")], [spec("http://a", generation="2"), spec("http://b")]])
    assert [(s.url, s.generation) for s in both.values()] == [("http://a", "1"), ("http://b", "")]


def test_joins_leaves_and_changes() -> None:
    before = merged([[spec("http://a"), spec("http://b"), spec("http://c", generation="1")]])
    now = merged([[spec("http://b", drain=True), spec("http://c", generation="2"), spec("http://d")]])
    made = change(before, now)
    assert made.joined == [spec("http://c", generation="2"), spec("http://d")]
    assert made.left == [spec("http://a"), spec("http://c", generation="1")]
    assert made.changed == [spec("http://b", drain=True)]


specs = st.lists(
    st.builds(
        MemberSpec,
        st.sampled_from(["render", "prefill", "decode"]),
        st.sampled_from(["http://a", "http://b", "http://c"]),
        st.sampled_from(["", "1"]),
        st.booleans(),
    )
)


@given(specs, specs)
def test_a_change_leads_from_one_list_to_the_other(first: list[MemberSpec], second: list[MemberSpec]) -> None:
    before, now = merged([first]), merged([second])
    made = change(before, now)
    state = {s.key: s for s in before.values() if s not in made.left}
    state |= {s.key: s for s in (*made.joined, *made.changed)}
    assert state == now


def test_a_file_names_members_with_what_is_declared_of_them() -> None:
    values = {
        "render": ["http://r:1/"],
        "decode": [
            {"url": "https://d:2", "generation": "b", "drain": True, "declared": {"tensor_parallel": 2}}
        ],
    }
    assert from_file(values) == [
        MemberSpec("render", "http://r:1"),
        MemberSpec("decode", "https://d:2", "b", drain=True, declared=Facts(tensor_parallel=2)),
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"decoders": []}, "decoders"),
        ({"decode": ["ftp://x"]}, "ftp://x"),
        ({"decode": ["http://"]}, "http://"),
        ({"decode": ["http://a?b"]}, "query"),
        ({"decode": [{"generation": "1"}]}, "url"),
        ({"decode": [{"url": "http://a", "declared": {"colour": 1}}]}, "colour"),
        ({"decode": [{"url": "http://a", "declared": {"block_size": "16"}}]}, "int"),
        ({"decode": "http://a"}, "array"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(values: dict[str, Any], said: str) -> None:
    with pytest.raises(MembershipError, match=said.replace("?", r"\?")):
        from_file(values)


def test_ipv6_addresses_are_bracketed() -> None:
    assert base_url("http", "fd00::1", 8000) == "http://[fd00::1]:8000"
    assert base_url("https", "10.0.0.1", 1) == "https://10.0.0.1:1"


# ---- EndpointSlices, as an API server of Kubernetes 1.30 writes them ---------------------------------------


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "nodeName": "n", "targetRef": {"kind": "Pod"}}


def endpoint_slice(
    name: str, *endpoints: dict[str, Any], ports: Any = None, version: str = "5", **labels: str
) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports
    return {
        "metadata": {"name": name, "namespace": "llm", "resourceVersion": version, "labels": labels},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": ports,
    }


def listed(*items: dict[str, Any], **options: Any) -> EndpointSlices:
    slices = EndpointSlices("decode", **options)
    slices.listed(
        json.dumps(
            {"kind": "EndpointSliceList", "metadata": {"resourceVersion": "10"}, "items": list(items)}
        ).encode()
    )
    return slices


def event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def test_ready_endpoints_are_members_and_terminating_ones_that_serve_are_drained() -> None:
    slices = listed(
        endpoint_slice(
            "a",
            endpoint("10.0.0.1", ready=True, serving=True, terminating=False),
            endpoint("10.0.0.2", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.3", ready=False, serving=False, terminating=False),
            endpoint("10.0.0.4"),
        )
    )
    assert slices.members() == [
        spec("http://10.0.0.1:8000"),
        spec("http://10.0.0.2:8000", drain=True),
        spec("http://10.0.0.4:8000"),
    ]
    assert slices.version == "10"


def test_events_are_taken_over() -> None:
    slices = listed(endpoint_slice("a", endpoint("10.0.0.1", ready=True)))
    more = endpoint_slice("b", endpoint("10.0.0.2", ready=True), version="11")
    assert slices.happened(event("ADDED", more))
    assert [s.url for s in slices.members()] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert slices.happened(event("MODIFIED", endpoint_slice("b", version="12")))
    assert slices.happened(event("DELETED", endpoint_slice("a", version="13")))
    assert slices.members() == []
    assert not slices.happened(event("BOOKMARK", {"metadata": {"resourceVersion": "20"}}))
    assert slices.version == "20"


def test_an_expired_watch_is_told_from_a_broken_one() -> None:
    slices = listed()
    with pytest.raises(Expired):
        slices.happened(event("ERROR", {"kind": "Status", "code": 410, "message": "too old"}))
    for line in (event("ERROR", {"code": 500}), b"{", b'{"type":"SURPRISE","object":{}}', b"\xff"):
        with pytest.raises(MembershipError) as raised:
            slices.happened(line)
        assert not isinstance(raised.value, Expired)


def test_a_port_is_found_by_name_number_or_because_it_is_the_only_one() -> None:
    ports = [{"name": "http", "port": 8000}, {"name": "nixl", "port": 5600}]
    item = endpoint_slice("a", endpoint("10.0.0.1", ready=True), ports=ports)
    assert [s.url for s in listed(item, port="http").members()] == ["http://10.0.0.1:8000"]
    assert [s.url for s in listed(item, port=9000, scheme="https").members()] == ["https://10.0.0.1:9000"]
    assert listed(item).members() == listed(item, port="grpc").members() == []


def test_an_endpoint_that_moves_between_slices_is_one_member() -> None:
    leaving = endpoint_slice("a", endpoint("10.0.0.1", serving=True, terminating=True))
    ready = endpoint_slice("b", endpoint("10.0.0.1", ready=True))
    assert (
        listed(leaving, ready).members() == listed(ready, leaving).members() == [spec("http://10.0.0.1:8000")]
    )


def test_the_generation_is_the_services_label() -> None:
    item = endpoint_slice("a", endpoint("10.0.0.1", ready=True), generation="blue")
    assert listed(item, generation="x").members()[0].generation == "x"
    assert listed(item, generation="x", generation_label="generation").members()[0].generation == "blue"
    assert listed(item, generation="x", generation_label="none").members()[0].generation == "x"
