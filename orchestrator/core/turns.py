"""KV that decode engines keep after a turn, found again for the prompt of the next one.

A prompt may be given KV only where it extends, position by position, the IDs that the KV was computed from:
an engine compares nothing and would answer from the wrong positions. So what is kept is filed under the hash
of exactly those IDs and of whose they are (``scope``), and found by the hashes of the new prompt's own
beginnings: no id that a client sends takes part. Each entry is given out once, since reading frees the KV.

Theory of operation
-------------------
IDs are hashed in blocks, each hash covering the blocks before it (``core.prefix``). An entry lies at its last
whole block, under the IDs behind it, fewer than a block. Looking up costs one step for each block of the
prompt, whatever is kept. So that a prompt which goes on from a kept turn differently (its template dropped
the thinking, its history was edited) can be told from one that has nothing to do with any, the beginning of
each turn's own prompt is remembered too.

``Turns`` keeps them in memory. For a store that knows keys and values alone there are ``place_of`` and
``Search``: an entry's key is a hash of all its IDs, and a few bits kept for each block say how many IDs lie
behind those of the entries that end in it. So one look at the bits of all blocks of a prompt names the few
keys to be asked for.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from orchestrator.core.kv_params import missing_fields
from orchestrator.core.prefix import Block, block_hashes

BLOCK: Final = 64
"""IDs. Prompts and turns that share fewer are not worth a transfer."""

SLACK: Final = 16
"""IDs at the end of a prompt that the next turn's template may write otherwise (the generation prompt)."""

READ_MARGIN: Final = 10.0
"""Seconds. vLLM's engines refuse to read KV in the last 5 s before it goes; the prefill may wait as long."""

BEGINNING: Final = BLOCK
"""The bit of a block which says that a turn is told by it; lower ones say how many IDs lie behind it."""

MARK_BYTES: Final = BEGINNING // 8 + 1

Miss = Literal["nothing_held", "not_a_prefix", "expired", "store_unavailable"]


@dataclass(frozen=True, slots=True)
class Turn:
    """``params`` is the engine's ``kv_transfer_params`` as JSON, ``holder`` its URL. Times are seconds on the
    caller's one clock."""

    tokens: int
    params: bytes
    holder: str
    kept_at: float
    """The engine has had the KV since then, at the latest."""
    usable_until: float

    @classmethod
    def of(
        cls, tokens: int, params: Mapping[str, Any], holder: str, kept_at: float, usable_until: float
    ) -> Turn:
        return cls(tokens, msgspec.json.encode(params), holder, kept_at, usable_until)

    def read(self) -> dict[str, Any]:
        params: dict[str, Any] = msgspec.json.decode(self.params)
        return params


def scope(tenant: str, generation: str, cache_identity: bytes) -> bytes:
    """Who may find a turn: the same tenant, with the same model, salt and media, on the same generation."""
    parts = (tenant.encode(), generation.encode(), cache_identity)
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


def usable_seconds(kept: float, fraction: float) -> float:
    """How long params of KV that is kept for ``kept`` seconds may be used."""
    return max(0.0, min(kept * fraction, kept - READ_MARGIN))


class UnusableTurn(ValueError):
    """Params of a decode that no prefill engine may be given; the message says why."""


def checked(params: Mapping[str, Any], known_tokens: int, block_size: int) -> tuple[int, dict[str, Any]]:
    """How many of the ``known_tokens`` (the prompt's and the output's) a decode's params cover, and the
    params that a prefill engine may be given. Raises ``UnusableTurn``.

    A reader pairs the ends of both engines' block lists, so a list that is longer than the tokens need would
    be read shifted: it is cut to what they need. Where there are several groups (sliding windows, of which
    only the end is kept), nothing is cut, and the longest must have what they need.
    """
    if params.get("do_remote_decode") is not True:
        raise UnusableTurn("the params offer nothing to a prefill engine")
    if missing := missing_fields(params):
        raise UnusableTurn(f"the params lack {', '.join(missing)}")
    tokens, groups = params.get("remote_num_tokens"), params["remote_block_ids"]
    if type(tokens) is not int or not 0 < tokens <= known_tokens:
        raise UnusableTurn(f"the params cover {tokens} tokens, {known_tokens} are known")
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise UnusableTurn("the blocks are not lists of groups")
    needed, longest = -(-tokens // block_size), max(map(len, groups))
    if longest < needed or (longest > needed and len(groups) > 1):
        raise UnusableTurn(f"{tokens} tokens need {needed} blocks, the params name {longest}")
    return tokens, {**params, "remote_block_ids": [group[:needed] for group in groups]}


class Turns:
    """At most ``max_entries``; the oldest go first. Times are seconds on the caller's one clock."""

    __slots__ = ("_beginnings", "_buckets", "_max_entries", "_order")

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._buckets: dict[Block, dict[tuple[int, ...], Turn]] = {}
        self._order: OrderedDict[tuple[Block, tuple[int, ...]], Block] = OrderedDict()
        """Each entry's place, to the beginning that it is told by."""
        self._beginnings: Counter[Block] = Counter()

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        return f"<Turns {len(self)}/{self._max_entries}>"

    def keep(self, scope: bytes, prompt_tokens: int, token_ids: Sequence[int], turn: Turn) -> bool:
        """``token_ids`` are those that the KV was computed from, of which the first ``prompt_tokens`` were
        the prompt. Whether it is kept: what is shorter than a block is not."""
        chain = _chain(scope, token_ids)
        if not chain:
            return False
        place = chain[-1], _behind(chain, token_ids)
        if place in self._order:
            self._drop(*place)
        self._buckets.setdefault(place[0], {})[place[1]] = turn
        told_by = _told_by(chain, prompt_tokens)
        self._order[place] = told_by
        self._beginnings[told_by] += 1
        if len(self._order) > self._max_entries:
            self._drop(*next(iter(self._order)))
        return True

    def take(self, scope: bytes, prompt: Sequence[int], now: float) -> Turn | Miss:
        """The longest turn that ``prompt`` extends by at least one ID, given out once."""
        chain = _chain(scope, prompt)
        expired = False
        for count in range(len(chain), 0, -1):
            bucket = self._buckets.get(chain[count - 1])
            if bucket is None:
                continue
            start = count * BLOCK
            longest = min(BLOCK - 1, len(prompt) - 1 - start)
            for length in range(longest, -1, -1):
                rest = tuple(prompt[start : start + length])
                turn = bucket.get(rest)
                if turn is None:
                    continue
                self._drop(chain[count - 1], rest)
                if now < turn.usable_until:
                    return turn
                expired = True
        if expired:
            return "expired"
        return "not_a_prefix" if any(block in self._beginnings for block in chain) else "nothing_held"

    def _drop(self, block: Block, rest: tuple[int, ...]) -> None:
        bucket = self._buckets[block]
        del bucket[rest]
        if not bucket:
            del self._buckets[block]
        told_by = self._order.pop((block, rest))
        self._beginnings[told_by] -= 1
        if not self._beginnings[told_by]:
            del self._beginnings[told_by]


@dataclass(frozen=True, slots=True)
class Place:
    """Of an entry in a store of keys and values: its key, and the bits that lead to it."""

    key: bytes
    marks: Mapping[Block, Sequence[int]]
    """By block, which of its bits."""


def place_of(scope: bytes, prompt_tokens: int, token_ids: Sequence[int]) -> Place | None:
    """Arguments as those of ``Turns.keep``; None for what is shorter than a block."""
    chain = _chain(scope, token_ids)
    if not chain:
        return None
    rest = _behind(chain, token_ids)
    marks: dict[Block, list[int]] = {chain[-1]: [len(rest)]}
    marks.setdefault(_told_by(chain, prompt_tokens), []).append(BEGINNING)
    return Place(_key(chain[-1], rest), marks)


class Search:
    """For the turns that ``prompt`` extends by at least one ID, in a store of keys and values."""

    def __init__(self, scope: bytes, prompt: Sequence[int]) -> None:
        self._prompt = prompt
        self.blocks = _chain(scope, prompt)
        """Whose bits are to be looked at."""
        self.began_so = False
        """Some turn begins like the prompt, as far as has been looked."""

    def keys(self, marks: Sequence[bytes | None]) -> Iterator[tuple[bytes, int]]:
        """Of the entries that may be there, by the bits of each of ``blocks``, and how many IDs they have;
        the longest first."""
        bits = [
            0 if mark is None else int.from_bytes(mark[:MARK_BYTES].ljust(MARK_BYTES, b"\0"))
            for mark in marks
        ]
        self.began_so = any(_has(each, BEGINNING) for each in bits)
        for count in range(len(self.blocks), 0, -1):
            start = count * BLOCK
            for length in range(min(BLOCK - 1, len(self._prompt) - 1 - start), -1, -1):
                if _has(bits[count - 1], length):
                    rest = tuple(self._prompt[start : start + length])
                    yield _key(self.blocks[count - 1], rest), start + length


def _has(bits: int, bit: int) -> bool:
    """Bits are numbered from the highest one of the first byte."""
    return bool(bits >> (8 * MARK_BYTES - 1 - bit) & 1)


def _key(block: Block, rest: tuple[int, ...]) -> bytes:
    return blake2b(array("Q", rest).tobytes(), digest_size=32, key=block).digest()


def _behind(chain: Sequence[Block], token_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(token_ids[len(chain) * BLOCK :])


def _told_by(chain: Sequence[Block], prompt_tokens: int) -> Block:
    return chain[min(len(chain), max(1, (prompt_tokens - SLACK) // BLOCK)) - 1]


def _chain(scope: bytes, token_ids: Sequence[int]) -> list[Block]:
    return block_hashes(token_ids, block=BLOCK, max_blocks=len(token_ids) // BLOCK, seed=scope)
