"""API keys: made, stored, found; the work of a look-up; credentials of a request; rates."""

from __future__ import annotations

import hashlib
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.credentials import Ambiguous, from_this_machine, shown_key
from orchestrator.core.keys import RANDOM_BYTES, Grant, Keyring, StoredKey, digest_of, new_key
from orchestrator.core.rate import Books, Limits


def made(number: int) -> tuple[str, StoredKey]:
    return new_key(hashlib.shake_256(str(number).encode()).digest(RANDOM_BYTES))


def grant(name: str) -> Grant:
    return Grant(name, name)


class CountingRing(Keyring):
    """Counts digests with their lengths, and comparisons."""

    def __init__(self, count: int) -> None:
        self.work: list[int] = []

        def digest(salt: bytes, key: bytes) -> bytes:
            self.work.append(len(salt) + len(key))
            return digest_of(salt, key)

        def equal(a: bytes, b: bytes) -> bool:
            self.work.append(-len(a) - len(b))
            return a == b

        super().__init__(((made(i)[1], grant(str(i))) for i in range(count)), digest=digest, equal=equal)


def test_a_key_is_found_by_its_owner_alone() -> None:
    keys = [made(i) for i in range(3)]
    ring = Keyring((stored, grant(f"key {i}")) for i, (_, stored) in enumerate(keys))
    assert [ring.find(key.encode()) for key, _ in keys] == [grant(f"key {i}") for i in range(3)]
    key = keys[0][0].encode()
    for wrong in (key[:-1], key + b"x", key[:-1] + b"\0", key.upper(), b"", b"pd-", keys[1][0][:20].encode()):
        assert ring.find(wrong) is None
    mixed = keys[0][0][:20] + keys[1][0][20:]
    assert ring.find(mixed.encode()) is None


def test_what_is_stored_gives_no_key_away() -> None:
    key, stored = made(1)
    line = stored.line()
    assert StoredKey.read(line) == stored
    secret = key.rpartition("-")[2]
    assert secret not in line
    assert Keyring([(stored, grant("a"))]).find(line.encode()) is None


def test_the_same_secret_is_stored_differently_each_time() -> None:
    random = bytes(range(RANDOM_BYTES))
    key, stored = new_key(random)
    again, other = new_key(random[:-1] + b"\xff")
    assert key == again
    assert stored.digest != other.digest


@pytest.mark.parametrize("line", ["", "sha256$0", "pd-0123456789abcdef-secret", "md5$0$0$0"])
def test_a_line_that_is_none_is_refused_without_being_repeated(line: str) -> None:
    with pytest.raises(ValueError, match="pd-orchestrator key") as raised:
        StoredKey.read(line)
    assert not line or line not in str(raised.value)


def test_a_look_up_is_the_same_work_for_any_key_shown_and_any_number_of_keys() -> None:
    """What is counted stands for time: one digest over as many bytes, one comparison of as many."""
    right, unknown = made(0)[0], made(999)[0]
    wrong = right[:-5] + "AAAAA"
    works = set()
    for count, shown in itertools.product((1, 2, 1000), (right, unknown, wrong, "x" * len(right))):
        ring = CountingRing(count)
        ring.find(shown.encode())
        works.add(tuple(ring.work))
    assert len(works) == 1
    [work] = works
    assert len(work) == 2


def test_an_endless_key_costs_no_more_than_a_long_one() -> None:
    ring = CountingRing(1)
    ring.find(b"x" * 10_000_000)
    assert ring.work[0] < 300


@pytest.mark.parametrize("change", ["id", "name"])
def test_two_keys_that_cannot_be_told_apart_are_refused(change: str) -> None:
    other = made(1 if change == "name" else 0)[1]
    name = "a" if change == "name" else "b"
    with pytest.raises(ValueError, match="two keys"):
        Keyring([(made(0)[1], grant("a")), (other, grant(name))])


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ([], None),
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"bearer  k ")], b"k"),
        ([(b"authorization", b"Basic k")], None),
        ([(b"x-api-key", b"k")], b"k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"Bearer")], None),
    ],
)
def test_where_a_key_is_shown(headers: list[tuple[bytes, bytes]], shown: bytes | None) -> None:
    assert shown_key(headers) == shown


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
        [(b"x-api-key", b"a"), (b"authorization", b"Bearer b")],
        [(b"x-api-key", b"a"), (b"x-api-key", b"b")],
        [(b"x-api-key", b"a"), (b"authorization", b"Basic a")],
    ],
)
def test_credentials_that_differ_are_none(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Ambiguous):
        shown_key(headers)


HERE = [(b"host", b"127.0.0.1:8000")]
SAME_ORIGIN = (b"sec-fetch-site", b"same-origin")


@pytest.mark.parametrize(
    ("client", "headers", "here"),
    [
        ("127.0.0.1", HERE, True),
        ("127.8.8.8", [(b"host", b"localhost:8000")], True),
        ("::1", [(b"host", b"[::1]:8000")], True),
        ("10.0.0.1", HERE, False),
        (None, HERE, False),
        ("not an address", HERE, False),
        ("127.0.0.1", [], False),
        ("127.0.0.1", [(b"host", b"rebound.example:8000")], False),
        ("127.0.0.1", [(b"host", b"[")], False),
        ("127.0.0.1", [*HERE, *HERE], False),
        *(("127.0.0.1", [*HERE, (name, b"127.0.0.1")], False)
          for name in (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")),
        ("127.0.0.1", [*HERE, (b"origin", b"https://evil.example")], False),
        ("127.0.0.1", [*HERE, (b"sec-fetch-site", b"cross-site")], False),
        ("127.0.0.1", [*HERE, SAME_ORIGIN, (b"origin", b"http://127.0.0.1:8000")], True),
    ],
)  # fmt: skip
def test_what_was_asked_on_this_machine(
    client: str | None, headers: list[tuple[bytes, bytes]], here: bool
) -> None:
    assert from_this_machine(client, headers) is here


@given(st.integers(1, 600), st.lists(st.floats(0, 30), max_size=200))
def test_no_more_begin_than_the_rate_allows(per_minute: int, pauses: list[float]) -> None:
    books, now, begun = Books(), 1000.0, 0
    for pause in pauses:
        now += pause
        wait = books.begin(Limits(per_minute=per_minute), 1, now)
        if wait:
            assert wait <= 60 / per_minute + 1e-6
        else:
            begun += 1
    assert begun <= per_minute + sum(pauses) * per_minute / 60 + 1e-6


def test_after_the_wait_there_is_one() -> None:
    books, limits = Books(), Limits(per_minute=2)
    assert [books.begin(limits, 1, 0.0), books.begin(limits, 1, 0.0)] == [0, 0]
    wait = books.begin(limits, 1, 0.0)
    assert wait == pytest.approx(30)
    assert books.begin(limits, 1, wait - 0.1) > 0
    assert books.begin(limits, 1, wait) == 0
    assert books.begin(limits, 1, wait - 5) > 0  # a clock that went back gives nothing
    assert books.begin(limits, 1, wait + 25) > 0  # nor does it twice


def test_what_is_refused_is_not_under_way() -> None:
    books, limits = Books(), Limits(2, 3)
    assert [books.begin(limits, process, 0.0) for process in (1, 2)] == [0, 0]
    assert books.begin(limits, 1, 0.0) == math.inf
    books.end(2)
    assert books.begin(limits, 1, 0.0) == 0
    books.end(1)
    assert 0 < books.begin(limits, 1, 0.0) < math.inf
    assert books.active == {1: 1}
