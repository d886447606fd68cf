"""Transfer params, deadlines, breaker, selection, coalescing, usage, timing and assembly."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.assembly import choiceless_frame, error_frames, with_fields
from orchestrator.core.breaker import Breaker
from orchestrator.core.coalescing import Output, Pending
from orchestrator.core.deadline import deadline, requested_timeout
from orchestrator.core.kv_params import UsedParams, decode_leg_id, lease_seconds, unusable
from orchestrator.core.selection import Candidate, decide, eligible
from orchestrator.core.timing import Timing
from orchestrator.core.usage import RunUsage, total
from render_tier.protocol.errors import BadRequest, Unavailable

COMPLETE = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 0,
    "remote_num_tokens": 5,
}


class TestTransferParams:
    def test_complete(self) -> None:
        assert unusable("length", COMPLETE, 5) is None

    @pytest.mark.parametrize("reason", ["stop", "abort", None])
    def test_must_end_by_length(self, reason: str | None) -> None:
        assert "by length" in (unusable(reason, COMPLETE, 5) or "")

    @pytest.mark.parametrize(
        "name", ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"]
    )
    @pytest.mark.parametrize("value", [None, "", []])
    def test_each_field_is_needed(self, name: str, value: Any) -> None:
        assert name in (unusable("length", COMPLETE | {name: value}, 5) or "")
        assert name in (unusable("length", {k: v for k, v in COMPLETE.items() if k != name}, 5) or "")

    @pytest.mark.parametrize("params", [None, [], "x", 1])
    def test_not_an_object(self, params: Any) -> None:
        assert unusable("length", params, 5)

    @pytest.mark.parametrize(
        ("remote_id", "fits"),
        [
            ("generate-tokens-leg1", True),
            ("generate-tokens-leg1-0-abc", True),
            ("generate-tokens-leg2", False),
            ("named by its own rule", True),
        ],
    )
    def test_params_of_another_request_are_noticed(self, remote_id: str, fits: bool) -> None:
        params = COMPLETE | {"remote_request_id": remote_id}
        assert (unusable("length", params, 5, "leg1") is None) is fits

    def test_params_can_be_claimed_once_and_memory_of_them_is_bounded(self) -> None:
        used = UsedParams(max_entries=3)
        assert used.claim(COMPLETE)
        assert not used.claim(dict(COMPLETE))
        assert used.claim(COMPLETE | {"remote_engine_id": "another"})
        for i in range(10):
            assert used.claim(COMPLETE | {"remote_request_id": str(i)})
        assert len(used) == 3

    def test_kv_that_is_pushed_goes_to_the_id_of_its_prefill(self) -> None:
        assert decode_leg_id(COMPLETE, "p1", "d1") == "d1"
        assert decode_leg_id(COMPLETE | {"transfer_mode": "pull"}, "p1", "d1") == "d1"
        assert decode_leg_id(COMPLETE | {"transfer_mode": "push"}, "p1", "d1") == "p1"

    def test_direction_and_size(self) -> None:
        assert unusable("length", COMPLETE | {"do_remote_prefill": False}, 5)
        assert unusable("length", COMPLETE | {"remote_num_tokens": 6}, 5)

    def test_own_lease_is_a_fraction_and_only_shortened_by_the_engine(self) -> None:
        assert lease_seconds({}, now=100, configured=30, fraction=0.5) == 15
        assert lease_seconds({"remote_blocks_expiry_time": 110}, now=100, configured=30, fraction=0.5) == 5
        assert lease_seconds({"remote_blocks_expiry_time": 900}, now=100, configured=30, fraction=0.5) == 15
        assert lease_seconds({"remote_blocks_expiry_time": 50}, now=100, configured=30, fraction=0.5) == 0
        assert lease_seconds({"remote_blocks_expiry_time": "x"}, now=100, configured=30, fraction=0.5) == 15


class TestDeadline:
    def test_a_client_can_only_shorten(self) -> None:
        assert deadline(10, None, 60).at == 70
        assert deadline(10, 5, 60).at == 15
        assert deadline(10, 500, 60).at == 70

    def test_budgets(self) -> None:
        limit = deadline(0, None, 10)
        assert limit.budget(4, 3) == 3
        assert limit.budget(4, 30) == 6
        assert limit.budget(11, 30) == 0

    def test_wishes(self) -> None:
        assert requested_timeout(None, None) is None
        assert requested_timeout("2.5", None) == 2.5
        assert requested_timeout("2.5", 1) == 1

    @pytest.mark.parametrize(
        ("header", "body"),
        [("x", None), ("0", None), ("-1", None), ("nan", None), ("inf", None), (None, "3"), (None, True),
         (None, [1]), (None, 0), (None, 10**400)],
    )  # fmt: skip
    def test_nonsense_is_refused(self, header: str | None, body: Any) -> None:
        with pytest.raises(BadRequest):
            requested_timeout(header, body)


class TestBreaker:
    def test_opens_after_failures_in_a_row_and_closes_on_success(self) -> None:
        breaker = Breaker(threshold=2, cooldown=5)
        breaker.failed(0)
        assert not breaker.is_open(0)
        breaker.succeeded()
        breaker.failed(1)
        assert not breaker.is_open(1)
        breaker.failed(2)
        assert breaker.is_open(2)
        assert not breaker.is_open(7)
        breaker.failed(7)
        assert breaker.is_open(8), "one failed trial opens it again"
        breaker.succeeded()
        assert not breaker.is_open(8)


def members(*active: int, **kwargs: Any) -> list[Candidate]:
    return [Candidate(str(i), count, **kwargs) for i, count in enumerate(active)]


class TestSelection:
    def test_round_robin(self) -> None:
        keys = [decide("round_robin", members(9, 0, 0), turn, lambda n: 0).winner.key for turn in range(6)]
        assert keys == ["0", "1", "2", "0", "1", "2"]

    def test_least_active_takes_turns_among_equals(self) -> None:
        assert decide("least_active", members(3, 1, 2), 0, lambda n: 0).winner.key == "1"
        keys = {decide("least_active", members(1, 1, 1), turn, lambda n: 0).winner.key for turn in range(3)}
        assert keys == {"0", "1", "2"}

    @given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.integers(0, 2**16))
    def test_power_of_two_compares_two_different_members(self, active: list[int], seed: int) -> None:
        chosen = decide("power_of_two", members(*active), 0, random.Random(seed).randrange).winner
        assert len(active) < 2 or chosen.active < max(active) or active.count(max(active)) > 1

    @given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
    def test_a_role_with_members_is_never_empty(self, flags: list[tuple[bool, bool]]) -> None:
        candidates = [Candidate(str(i), 0, healthy, tried) for i, (healthy, tried) in enumerate(flags)]
        choices = eligible(candidates)
        assert choices
        best = max((c.healthy, not c.tried) for c in candidates)
        assert all((c.healthy, not c.tried) == best for c in choices if c.healthy)

    def test_an_unhealthy_lone_member_is_asked(self) -> None:
        assert decide("power_of_two", members(0, healthy=False, tried=True), 3, lambda n: 0).winner.key == "0"


OUTPUTS = st.lists(
    st.builds(
        lambda ids, logs: Output(ids, [msgspec.Raw(str(i).encode()) for i in ids] if logs else None),
        st.lists(st.integers(0, 99), max_size=4),
        st.booleans(),
    ),
    max_size=20,
)


class TestCoalescing:
    @given(OUTPUTS, st.lists(st.booleans(), min_size=20, max_size=20))
    def test_nothing_is_lost_or_reordered(self, outputs: list[Output], takes: list[bool]) -> None:
        sent = [token for output in outputs for token in output.token_ids]
        logs = [bytes(entry) for output in outputs for entry in output.logprobs or []]
        pending, taken = Pending(8), []
        for output, take in zip(outputs, takes, strict=False):
            pending.add(output)
            if take:
                taken.append(pending.take())
        taken.append(pending.take())
        assert pending.empty
        parts = [part for part in taken if part is not None]
        assert [token for part in parts for token in part.token_ids] == sent
        assert [bytes(entry) for part in parts for entry in part.logprobs or []] == logs

    def test_finish_comes_with_the_last_tokens(self) -> None:
        pending = Pending(8)
        pending.add(Output([1]))
        pending.add(Output([2], finish_reason="stop", stop_reason=7))
        assert pending.take() == Output([1, 2], None, "stop", 7)

    def test_full(self) -> None:
        pending = Pending(2)
        pending.add(Output([1]))
        assert not pending.full
        pending.add(Output([2, 3, 4]))
        assert pending.full
        pending.take()
        assert not pending.full


def test_usage_counts_a_prompt_once_and_sums_choices() -> None:
    usage = total([10, 5], [4, None], [RunUsage(3, 1), RunUsage(2, None), RunUsage(1, 2)], reasoning=True)
    assert usage.as_json() == {
        "prompt_tokens": 15,
        "completion_tokens": 6,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    bare = total([10], [None], [RunUsage(3)], reasoning=False).as_json()
    assert bare["prompt_tokens_details"] is None
    assert bare["completion_tokens_details"] is None


def test_timing_spans() -> None:
    timing = Timing(started=1.0)
    for at, names in {
        1.5: ("rendered", "prefill_started"),
        2.0: ("prefilled", "decode_started"),
        2.5: ("first_token",),
        2.6: ("first_output",),
        4.0: ("finished",),
    }.items():
        for name in names:
            timing.mark(name, at)
    timing.mark("first_output", 9.0)
    timing.gaps.add(0.1)
    timing.gaps.add(0.3)
    report = timing.report(members=True)
    assert report["render_ms"] == 500
    assert report["prefill_ms"] == 500
    assert report["decode_first_token_ms"] == 500
    assert report["first_derender_ms"] == 100
    assert report["ttft_ms"] == 1600
    assert report["total_ms"] == 3000
    assert report["itl_ms"] == {"mean": 200.0, "max": 300.0, "count": 2}
    timing.restart_legs()
    assert timing.report(members=True)["prefill_ms"] is None
    assert timing.report(members=False)["render_ms"] == 500


def test_derendering_a_whole_answer_begins_when_its_output_is_complete() -> None:
    timing = Timing(started=1.0)
    marks = {"decode_started": 2.0, "first_token": 2.5, "output_complete": 4.0, "first_output": 4.125}
    for name, at in marks.items():
        timing.mark(name, at)
    report = timing.report(members=False)
    assert report["first_derender_ms"] == 125
    assert report["ttft_ms"] == 3125


def test_error_frames_end_the_stream() -> None:
    first, second = error_frames(Unavailable("gone")).decode().strip().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == 503
    assert second == "data: [DONE]"


def test_with_fields_keeps_the_rest_byte_for_byte() -> None:
    assert with_fields(b'{"a": 1.0, "b":[1,  2]}', {"b": 3, "c": None}) == b'{"a":1.0,"b":3,"c":null}'
    assert with_fields(b'{"big": 123456789012345678901234567890}', {}) == (
        b'{"big":123456789012345678901234567890}'
    )


def test_choiceless_frame() -> None:
    payload = choiceless_frame("chat.completion.chunk", "id", 5, "m", {"usage": {"x": 1}})
    chunk = json.loads(payload.decode().removeprefix("data: "))
    assert chunk == {
        "id": "id",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
        "choices": [],
        "usage": {"x": 1},
    }
