"""The exact index against a model of an engine's cache: what is predicted is what the engine would find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.exact_index import ExactIndex, LookedUp
from orchestrator.core.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    GarbledEvents,
    KvEvent,
    read_batch,
    read_sequence,
)
from orchestrator.core.media import Item
from orchestrator.core.reported_cache import ReportedCache

SIZE = 2
GPU, CPU = "GPU", "CPU"
Prefix = tuple[int, ...]
IDS = st.lists(st.integers(0, 2), max_size=9).map(tuple)


def looked_up(ids: Sequence[int], **more: Any) -> LookedUp:
    """With one ID more, which no engine takes from its cache."""
    return LookedUp.of([*ids, 0], most=1000, **more)


def stored(
    ids: Sequence[int],
    hashes: list[BlockHash],
    parent: BlockHash | None = None,
    size: int = SIZE,
    **more: Any,
) -> BlockStored:
    return BlockStored(hashes, parent, list(ids), size, **({"medium": GPU} | more))


def removed(*hashes: BlockHash, **more: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), **({"medium": GPU} | more))


@dataclass
class Engine:
    """Blocks named by all the IDs up to their end; ``told`` are those that a follower can know of."""

    held: dict[str, set[Prefix]] = field(default_factory=lambda: {GPU: set(), CPU: set()})
    told: dict[str, set[Prefix]] = field(default_factory=lambda: {GPU: set(), CPU: set()})
    number: int = 0
    deaf: bool = False

    def store(self, ids: Prefix, medium: str) -> list[KvEvent]:
        whole = len(ids) // SIZE * SIZE
        at = 0
        while at < whole and ids[: at + SIZE] in self.held[medium]:
            at += SIZE
        if at == whole:
            return []
        prefixes = [ids[:end] for end in range(at + SIZE, whole + 1, SIZE)]
        self.held[medium].update(prefixes)
        if not self.deaf and (not at or self.known(ids[:at])):
            self.told[medium].update(prefixes)
        hashes: list[BlockHash] = [repr(prefix).encode() for prefix in prefixes]
        parent = repr(ids[:at]).encode() if at else None
        return [stored(ids[at:whole], hashes, parent, medium=medium)]

    def known(self, prefix: Prefix) -> bool:
        """A follower can place what comes after it: it is held, or something below it is."""
        return any(p[: len(prefix)] == prefix for told in self.told.values() for p in told)

    def remove(self, choice: int, medium: str) -> list[KvEvent]:
        if not self.held[medium]:
            return []
        gone = sorted(self.held[medium])[choice % len(self.held[medium])]
        self.held[medium].discard(gone)
        self.told[medium].discard(gone)
        return [removed(repr(gone).encode(), medium=medium)]

    def clear(self) -> list[KvEvent]:
        for sets in (self.held, self.told):
            for blocks in sets.values():
                blocks.clear()
        return [AllBlocksCleared()]

    def unheard(self) -> None:
        for blocks in self.told.values():
            blocks.clear()

    def finds(self, ids: Prefix, sets: dict[str, set[Prefix]]) -> int:
        depth = 0
        while depth + SIZE <= len(ids) and any(ids[: depth + SIZE] in blocks for blocks in sets.values()):
            depth += SIZE
        return depth


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), IDS, st.sampled_from([GPU, CPU])),
        st.tuples(st.just("remove"), st.integers(0, 50), st.sampled_from([GPU, CPU])),
        st.tuples(st.just("again"), st.integers(0, 50), st.none()),
        st.tuples(st.sampled_from(["clear", "lose", "restart"]), st.none(), st.none()),
    ),
    max_size=40,
)


@given(OPERATIONS, st.lists(IDS, min_size=1, max_size=5), st.booleans())
def test_the_prediction_is_what_the_engine_holds(
    operations: list[tuple[str, Any, Any]], prompts: list[Prefix], replays: bool
) -> None:
    """Whatever is stored, removed, cleared, repeated, lost on the way, or started anew. Where lost messages
    are replayed nothing is missing; elsewhere the index knows what came since, and is not whole."""
    engine, cache = Engine(), ReportedCache(10_000, 8, 0.25)
    log: list[list[KvEvent]] = []
    missed = whole = False
    for name, what, medium in [*operations, ("store", (0, 1, 2, 0), GPU)]:
        if name == "restart":
            engine, log, missed = Engine(), [], False
            cache.lose("disconnected")
            continue
        if name == "again":
            if cache.predict(looked_up(())) is not None and not missed:
                cache.take(what % len(log), log[what % len(log)])
            continue
        if name == "lose":
            before = {medium: set(blocks) for medium, blocks in engine.told.items()}
            log.append(engine.store((1, 1, 1, 1), GPU) + engine.remove(3, GPU))
            missed = True
            if not replays:
                engine.told = before
                engine.deaf = True
            continue
        if missed and not replays:
            engine.unheard()
            engine.deaf = whole = False
        if name == "store":
            events = engine.store(what, medium)
        elif name == "remove":
            events = engine.remove(what, medium)
        else:
            events = engine.clear()
        log.append(events)
        number = len(log) - 1
        start = cache.arriving(number)
        assert (start is not None) == missed
        if start is not None and replays:
            for earlier in range(start, number):
                cache.take(earlier, log[earlier])
        cache.take(number, events)
        whole = number == 0 or name == "clear" or (whole and (replays or not missed)) or (missed and replays)
        missed = False
        assert cache.trusted == whole
        for prompt in prompts:
            assert cache.predict(looked_up(prompt)) == engine.finds(prompt, engine.told)
        if whole:
            assert engine.told == engine.held


def test_the_last_token_of_a_prompt_is_never_cached() -> None:
    index = ExactIndex(10)
    index.apply(stored([1, 2, 3, 4], [b"a", b"b"]))
    assert index.cached_tokens(LookedUp.of([1, 2, 3, 4], most=100)) == 2
    assert index.cached_tokens(LookedUp.of([1, 2, 3, 4, 5], most=100)) == 4
    assert index.cached_tokens(LookedUp.of([1, 2, 3, 4, 5], most=3)) == 2
    assert index.cached_tokens(LookedUp.of([], most=3)) == 0


def test_blocks_are_held_until_every_medium_has_let_go() -> None:
    index = ExactIndex(10)
    index.apply(stored([1, 2], [b"a"]))
    index.apply(stored([], [b"a"], medium=CPU))
    index.apply(removed(b"a"))
    assert index.cached_tokens(looked_up([1, 2])) == 2
    index.apply(removed(b"a", medium=CPU))
    assert (index.cached_tokens(looked_up([1, 2])), len(index)) == (0, 0)


def test_salts_and_adapters_have_prefixes_of_their_own() -> None:
    index = ExactIndex(100)
    index.apply(stored([1, 2, 3, 4], [1, 2], extra_keys=[["s"], None]))
    index.apply(stored([5, 6], [3], lora_name="fr", extra_keys=[["fr"]]))
    index.apply(stored([7, 8], [4], lora_name="fr"))
    index.apply(stored([1, 2], [5], lora_name="fr", extra_keys=[["fr", "s"]]))
    found = index.cached_tokens
    assert found(looked_up([1, 2, 3, 4], salt="s")) == 4
    assert found(looked_up([1, 2, 3, 4], salt="t")) == found(looked_up([1, 2, 3, 4])) == 0
    assert found(looked_up([5, 6], model="fr")) == found(looked_up([7, 8], model="fr")) == 2
    assert found(looked_up([5, 6], model="base")) == found(looked_up([5, 6])) == 0
    assert found(looked_up([1, 2, 3, 4], model="fr", salt="s")) == 2


def test_groups_that_need_the_whole_prefix_decide() -> None:
    index = ExactIndex(100)
    kinds = ("full_attention", "sliding_window", "mla_attention")
    for group, (kind, blocks) in enumerate(zip(kinds, (3, 1, 2), strict=True)):
        hashes: list[BlockHash] = list(range(blocks))
        index.apply(stored(range(2 * blocks), hashes, group_idx=group, kv_cache_spec_kind=kind))
    assert index.cached_tokens(looked_up(range(8))) == 4
    index.apply(removed(0, group_idx=1))
    assert index.cached_tokens(looked_up(range(8))) == 4
    index.apply(removed(1, group_idx=2))
    assert index.cached_tokens(looked_up(range(8))) == 2


def test_of_groups_of_unknown_kind_the_deepest_counts() -> None:
    index = ExactIndex(100)
    for group in (0, 1):
        index.apply(stored(range(4), [1, 2], group_idx=group))
    index.apply(removed(1, group_idx=1))
    assert index.cached_tokens(looked_up(range(4))) == 4


def test_the_index_is_bounded_in_blocks_groups_and_sizes() -> None:
    index = ExactIndex(3)
    index.apply(stored(range(10), list(range(5))))
    assert len(index) == 3
    assert index.cached_tokens(looked_up(range(10))) == 6
    index.apply(removed(2))
    index.apply(stored([4, 5], [9], parent=1))
    assert index.cached_tokens(looked_up(range(10))) == 6
    index = ExactIndex(10_000)
    for i in range(1, 100):
        index.apply(stored(range(i), [i], size=i, group_idx=0))
        index.apply(stored(range(i), [i], size=i, group_idx=i))
    assert len(index) < 4 + 31 + 1


def test_what_cannot_be_placed_is_left_out() -> None:
    index = ExactIndex(10)
    index.apply(stored([3, 4], [b"b"], parent=b"never seen"))
    index.apply(removed(b"never seen"))
    index.apply(stored([1, 2], [b"x", b"y"]))  # a block without IDs in between
    assert len(index) == 0
    index.apply(stored([1, 2], [b"a"]))
    index.apply(stored([5, 6], [b"a"]))
    assert (index.cached_tokens(looked_up([1, 2])), index.cached_tokens(looked_up([5, 6]))) == (2, 0)


def cache_at(number: int, **more: Any) -> ReportedCache:
    cache = ReportedCache(100, **({"window": 4, "miss_share": 0.25} | more))
    cache.arriving(number)
    cache.take(number, [stored([1, 2, 3, 4], [1, 2])])
    return cache


def test_a_later_start_is_not_whole_until_the_cache_is_cleared() -> None:
    cache = cache_at(7)
    assert cache.predict(looked_up([1, 2])) == 2
    assert not cache.trusted
    assert cache.arriving(8) is None
    cache.take(8, [AllBlocksCleared(), stored([1, 2], [1])])
    assert cache.trusted
    assert cache.predict(looked_up([1, 2, 3, 4])) == 2


def test_an_engine_that_begins_anew_has_an_empty_cache() -> None:
    cache = cache_at(0)
    assert cache.arriving(0) is None
    cache.take(0, [stored([5, 6], [3])])
    assert cache.trusted
    assert cache.predict(looked_up([1, 2])) == 0
    assert cache.losses == {"restart": 1}


def test_an_engine_that_has_said_nothing_holds_nothing() -> None:
    cache = ReportedCache(100, 4, 0.25)
    assert cache.predict(looked_up([1, 2])) is None
    cache.nothing_yet()
    assert cache.predict(looked_up([1, 2])) == 0
    assert cache.trusted


def test_a_garbled_message_costs_the_index_and_not_the_place() -> None:
    cache = cache_at(0)
    assert cache.arriving(1) is None
    cache.skip(1)
    assert not cache.trusted
    assert cache.predict(looked_up([1, 2])) == 0
    assert cache.arriving(2) is None


def test_drift_is_counted_once_and_forgiven_after_a_window_without_it() -> None:
    cache = cache_at(0)
    prompt = looked_up([1, 2, 3, 4])
    assert not cache.compare(prompt, 4, 4)
    assert cache.compare(prompt, 4, 0)
    assert cache.trusted
    for _ in range(5):
        cache.compare(prompt, 4, 1)
    assert not cache.trusted
    assert cache.losses == {"drift": 1}
    for _ in range(2):
        cache.compare(prompt, 4, 4)
        assert not cache.trusted, "two misses are still in the window"
    cache.compare(prompt, 4, 4)
    assert cache.trusted


def test_an_engine_that_holds_what_it_did_not_say_drifts_too() -> None:
    cache = cache_at(0)
    unknown = looked_up([9, 9, 9, 9])
    for _ in range(2):
        assert cache.compare(unknown, 0, 4)
    assert not cache.trusted
    known_by_now = looked_up([1, 2, 3, 4])
    assert not cache.compare(known_by_now, 0, 4)
    assert not cache.compare(looked_up([7, 7]), 0, 0), "says nothing either way"
    assert not cache.trusted


def test_what_was_not_looked_up_is_no_drift() -> None:
    """An engine tells of the whole prompt, the index of what it was asked for."""
    ids = list(range(70_000))
    prompt = LookedUp.of([*ids, 0], most=32_768)
    cache = ReportedCache(100_000, 2, 0.25)
    cache.take(0, [stored(ids, [*range(35_000)])])
    predicted = cache.predict(prompt)
    assert predicted == 32_768
    for _ in range(4):
        assert not cache.compare(prompt, predicted, 70_000)
    assert cache.trusted
    short = ReportedCache(100_000, 2, 0.25)
    short.take(0, [stored(ids[:16_386], [*range(8193)])])
    assert not short.compare(prompt, 16_386, 70_000), "more than half of what was looked up"
    few = ReportedCache(100_000, 2, 0.25)
    few.take(0, [stored(ids[:4], [0, 1])])
    assert few.compare(prompt, 4, 70_000)


BATCH = [
    1.5,
    [
        {
            "type": "BlockStored",
            "block_hashes": [b"h" * 32, 7],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [["salt"], None],
            "group_idx": 0,
            "session_id": "s",
            "of_a_later_version": 1,
        },
        {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0},
        {"type": "AllBlocksCleared"},
    ],
    0,
]


def test_batches_as_the_engine_writes_them() -> None:
    assert read_batch(msgspec.msgpack.encode(BATCH)) == [
        BlockStored([b"h" * 32, 7], None, [1, 2, 3, 4], 2, "GPU", None, [["salt"], None], 0),
        BlockRemoved([7], "GPU", 0),
        AllBlocksCleared(),
    ]
    assert read_batch(msgspec.msgpack.encode([1.5, []])) == []
    assert read_sequence(b"\0" * 7 + b"\5") == 5
    assert read_sequence(b"\xff" * 8) == -1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000 + b"\xc0",
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode([1.5, [{"type": "BlockMoved"}]]),
        msgspec.msgpack.encode([1.5, [{"type": "BlockStored", "block_hashes": "x"}]]),
        msgspec.msgpack.encode(BATCH)[:-30],
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(GarbledEvents):
        read_batch(payload)


@given(st.binary(max_size=60))
def test_no_bytes_end_in_another_error(payload: bytes) -> None:
    index = ExactIndex(10)
    try:
        for event in read_batch(payload):
            index.apply(event)
    except GarbledEvents:
        pass


@pytest.mark.parametrize(
    "event",
    [
        stored([-1, 2], [1]),
        stored([2**64 + 1, 2], [1]),
        stored([1, 2, 3, 4], [1, 2], extra_keys=[None]),
        stored([1, 2], [1], extra_keys=["x"]),
    ],
)
def test_events_that_make_no_sense_are_garbled(event: BlockStored) -> None:
    with pytest.raises(GarbledEvents):
        ExactIndex(10).apply(event)


def test_blocks_that_show_images_are_found_for_the_same_images_at_the_same_places() -> None:
    """As vLLM names them: beside the IDs of a block stand the hash of each image in it and the image's
    beginning, counted from the block's."""
    index = ExactIndex(100)
    # IDs 1 to 3 show image a, ID 5 shows image b, in blocks of two.
    keys: list[Any] = [[["a", 1], "salt"], [["a", -1]], [["b", 1]]]
    index.apply(stored([1, 9, 9, 9, 2, 9], [b"x", b"y", b"z"], extra_keys=keys))

    def found(*media: Item, salt: str | None = "salt") -> int:
        return index.cached_tokens(looked_up([1, 9, 9, 9, 2, 9], media=media, salt=salt))

    a, b = Item("a", 1, 3), Item("b", 5, 1)
    assert found(a, b) == 6
    assert found(a, Item("c", 5, 1)) == 4
    assert found(a) == 4
    assert found(Item("a", 1, 1), b) == 2, "the second block shows nothing then"
    assert found(Item("b", 1, 3), b) == found() == found(a, b, salt=None) == 0
