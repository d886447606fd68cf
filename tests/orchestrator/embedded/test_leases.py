"""The life of a lease, cell by cell."""

from __future__ import annotations

import pytest

from orchestrator.embedded.leases import ClaimRefused, Lease, LeaseTable, Refusal


def table(remembered: int = 100) -> LeaseTable:
    leases = LeaseTable(30.0, remembered=remembered)
    leases.grant("r", (1, 2), 20, "digest", now=100.0)
    return leases


def claim(
    leases: LeaseTable,
    *,
    name: str = "r",
    blocks: tuple[int, ...] = (1, 2),
    tokens: int = 20,
    digest: str = "digest",
    now: float = 101.0,
) -> Lease:
    return leases.claim(name, blocks, tokens, digest, now)


def refusal(leases: LeaseTable, **what: object) -> Refusal:
    with pytest.raises(ClaimRefused) as caught:
        claim(leases, **what)  # type: ignore[arg-type]
    return caught.value.reason


def test_a_claim_is_honoured_once() -> None:
    leases = table()
    lease = claim(leases)
    assert refusal(leases) is Refusal.REUSED
    assert leases.begin(lease, now=102.0)
    assert refusal(leases) is Refusal.REUSED
    assert leases.finish(lease) == (1, 2)
    assert refusal(leases) is Refusal.REUSED
    assert (len(leases), leases.consumed, leases.expired) == (0, 1, 0)


def test_a_claim_given_up_spends_the_lease() -> None:
    leases = table()
    assert leases.finish(claim(leases)) == (1, 2)
    assert refusal(leases) is Refusal.REUSED


def test_finishing_twice_frees_once() -> None:
    leases = table()
    lease = claim(leases)
    leases.finish(lease)
    assert leases.finish(lease) == ()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"name": "other"}, Refusal.UNKNOWN),
        ({"digest": "other"}, Refusal.PROMPT_MISMATCH),
        ({"tokens": 19}, Refusal.PROMPT_MISMATCH),
        ({"blocks": (1, 3)}, Refusal.BLOCKS_MISMATCH),
        ({"now": 130.0}, Refusal.EXPIRED),
    ],
)
def test_a_refused_claim_names_the_cause_and_changes_nothing(
    what: dict[str, object], reason: Refusal
) -> None:
    leases = table()
    assert refusal(leases, **what) is reason
    assert claim(leases).blocks == (1, 2)


def test_a_lease_expires_at_its_deadline() -> None:
    leases = table()
    assert leases.next_deadline() == 130.0
    assert leases.expire(129.9) == []
    assert leases.expire(130.0) == [(1, 2)]
    assert refusal(leases) is Refusal.EXPIRED
    assert leases.next_deadline() is None


def test_heartbeats_move_the_deadline() -> None:
    leases = table()
    lease = claim(leases, now=120.0)
    assert leases.renew(lease, now=145.0)
    assert leases.expire(174.0) == []
    assert leases.expire(175.0) == [(1, 2)]
    assert not leases.renew(lease, now=175.0)
    assert not leases.begin(lease, now=175.0)


def test_a_heartbeat_after_the_deadline_does_not_revive() -> None:
    leases = table()
    lease = claim(leases)
    assert not leases.renew(lease, now=131.0)


def test_a_lease_is_pinned_while_its_blocks_travel() -> None:
    leases = table()
    lease = claim(leases)
    assert leases.begin(lease, now=102.0)
    assert leases.expire(1e9) == []
    assert leases.next_deadline() is None
    assert leases.finish(lease) == (1, 2)


def test_ends_are_remembered_up_to_a_bound() -> None:
    leases = table(remembered=1)
    leases.expire(130.0)
    leases.grant("s", (3,), 1, "d", now=130.0)
    leases.expire(200.0)
    assert refusal(leases, name="s") is Refusal.EXPIRED
    assert refusal(leases, name="r") is Refusal.UNKNOWN
