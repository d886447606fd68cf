"""The cache of streams: bounded, emptied by time, and of no consequence for any answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from render_tier.derendering import Derenderer
from render_tier.derendering.stream_cache import ENTRY_BYTES, StreamCache
from render_tier.protocol.errors import BadRequest, ContextRequired
from tests.render_tier.derendering.conftest import TOOLS, Client

Make = Callable[..., Client]

TEXT = (
    "<think>\nHm — 𓂀 stop?\n</think>\n\nSure.\n"
    '<tool_call>\n{"name": "f", "arguments": {"x": "a 𓂀 b"}}\n</tool_call>'
)


class Found:
    """Counts how calls found their streams."""

    def __init__(self, derenderer: Derenderer) -> None:
        self.counts = {"new": 0, "cache": 0, "state": 0, "replay": 0}
        derenderer.observer = self

    def __call__(self, source: str) -> None:
        self.counts[source] += 1


def test_the_next_chunk_finds_its_stream(client: Make) -> None:
    who = client()
    found = Found(who.derenderer)
    who.stream([[i] for i in who.encode(TEXT)])
    assert found.counts == {"new": 1, "cache": len(who.encode(TEXT)) - 1, "state": 0, "replay": 0}
    assert len(who.derenderer.cache) == 0, "a stream that is over is not kept"
    assert who.derenderer.cache.bytes == 0


def test_a_repeated_call_restores_and_answers_alike(client: Make) -> None:
    who = client()
    found = Found(who.derenderer)
    state = who.chunk([40])["stream_state"]
    answers = [who.chunk([41], state) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert (found.counts["cache"], found.counts["state"]) == (1, 2)
    assert len(who.derenderer.cache) == 1


def test_an_error_leaves_nothing_behind(client: Make) -> None:
    who = client()
    found = Found(who.derenderer)
    state = who.chunk([40])["stream_state"]
    with pytest.raises(BadRequest):
        who.chunk([1 << 40], state)
    assert len(who.derenderer.cache) == 0
    who.chunk([41], state)
    assert found.counts["state"] == 1


def test_vllm_state_is_counted_as_replayed(client: Make) -> None:
    who = client()
    found = Found(who.derenderer)
    who.chunk([41], {"output_token_ids": [40], "output_chunk_lens": [1], "role_sent": True})
    assert found.counts["replay"] == 1


def test_bounds(client: Make) -> None:
    now = 0.0
    who = client()

    def kept(cache: StreamCache, count: int) -> list[int]:
        states = []
        for number in range(count):
            body: Any = who.chunk([1] * (number + 1))["stream_state"]["s"]
            taken = who.derenderer.cache.take(body)
            assert taken is not None
            cache.put(body, taken)
            states.append(body)
        return [number for number, state in enumerate(states) if cache.take(state) is not None]

    assert kept(StreamCache(3, 1 << 30, 9.0, lambda: now), 5) == [2, 3, 4]
    assert kept(StreamCache(99, 2 * ENTRY_BYTES + 2000, 9.0, lambda: now), 5) == [3, 4]
    assert kept(StreamCache(0, 1 << 30, 9.0, lambda: now), 2) == []
    cache = StreamCache(99, 1 << 30, 9.0, lambda: now)
    who.chunk([1])
    taken = who.derenderer.cache.take(who.chunk([2])["stream_state"]["s"])
    assert taken is not None
    cache.put("x", taken)
    assert cache.bytes > 0
    now = 9.0
    assert cache.take("x") is None
    assert (len(cache), cache.bytes) == (0, 0)


def bodies(who: Client, ids: list[int], sizes: list[int]) -> list[tuple[list[int], str | None]]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(ids[at : at + size])
        at += size
    pieces.append(ids[at:])
    return [(piece, "stop" if number == len(pieces) - 1 else None) for number, piece in enumerate(pieces)]


@pytest.mark.parametrize(
    "request_fields",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "stop": ["stop", "re.\n"], "logprobs": True},
        {"include_reasoning": False, "logprobs": True},
        {"return_token_ids": True, "tools": TOOLS, "min_tokens": 8, "stop": ["H"]},
    ],
)
def test_it_changes_no_byte(client: Make, request_fields: dict[str, Any]) -> None:
    """On, off, one entry and two interleaved streams, and on random workers: the same answers, states
    included."""
    rng = random.Random(1)
    on = client(request_fields)
    off = client(request_fields, stream_cache_entries=0)
    one = client(request_fields, stream_cache_entries=1)
    workers = [client(request_fields) for _ in range(3)]
    ids = on.encode(TEXT)
    logprobs = {"content": [{"token_id": i, "logprob": -0.5, "top_logprobs": []} for i in ids]}
    for _ in range(8):
        sizes = [rng.choice((0, 1, 1, 2, 5)) for _ in range(rng.randrange(1, len(ids)))]
        states: dict[int, Any] = {}
        at = 0
        for piece, finish in bodies(on, ids, sizes):
            entries = {"content": logprobs["content"][at : at + len(piece)]}
            at += len(piece)
            answers = []
            for number, who in enumerate((on, off, one, rng.choice(workers))):
                answers.append(who.chunk(piece, states.get(0), finish, logprobs=entries))
                if number == 2:  # another stream takes the only place
                    who.chunk([1])
            assert all(answer == answers[0] for answer in answers)
            states[0] = answers[0]["stream_state"]
    usage = {"prompt_tokens": 1, "completion_tokens": 999, "total_tokens": 1000}
    more = {"generate_chunk": {"request_id": on.request_id, "choices": [], "usage": usage}}
    last = [who.chunk([], states[0], more=more) for who in (on, off, one)]
    assert last[0] == last[1] == last[2]


def test_a_stream_outlives_no_context(client: Make) -> None:
    """Asked for without its request, a stream whose context has gone needs it again, kept or not."""
    for entries in (0, 100):
        who = client(context_cache_entries=1, stream_cache_entries=entries)
        state = who.chunk([1])["stream_state"]
        other = Client(who.derenderer, who.encode, who.prompt)
        other.request = {"messages": [{"role": "user", "content": "other"}]}
        other.chunk([1])
        with pytest.raises(ContextRequired):
            who.chunk([2], state, more={"chat_request": None, "prompt_token_ids": None})
