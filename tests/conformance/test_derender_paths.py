"""Every recorded output through every way that derender has: the cache on, off and too small, workers at
random, a session, a session that is lost. All give the same bytes, and they say what the whole says."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from render_tier.core.vocabulary import Vocabulary
from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.derendering.session import Budget, Session
from tests.families.tokenization import CorpusTokenizer, tokenizer_of
from tests.render_tier.derendering.conftest import folded, unfolded
from tests.support.corpus import DATA, parser_cases

CASES = [
    case for path in sorted((DATA / "parsers").glob("*.jsonl")) for case in parser_cases(path.stem)
]  # fmt: skip
REQUEST_ID = "chatcmpl-recorded"


@dataclass(frozen=True)
class Served:
    vocabulary: Vocabulary
    served_names: tuple[str, ...] = ("recorded",)
    vocab_size: int = 1 << 20
    max_model_len: int = 1 << 20
    eos_token_ids: tuple[int, ...] = ()
    fingerprint: str = "recorded"


class Fleet:
    """Of one configuration: with a cache, without, with one of a single entry, and three workers."""

    def __init__(self, tokenizer: CorpusTokenizer, reasoning: str | None, tool: str | None) -> None:
        def make(**settings: Any) -> Derenderer:
            options = DerenderSettings(
                reasoning_parser=reasoning, tool_parser=tool, state_keys=(b"key",), **settings
            )
            return Derenderer(Served(tokenizer.vocabulary), options, clock=lambda: 7.0)

        self.cached = make()
        self.uncached = make(stream_cache_entries=0)
        self.single = make(stream_cache_entries=1)
        self.workers = [make() for _ in range(3)]


@cache
def fleet(tokenizer: CorpusTokenizer, reasoning: str | None, tool: str | None) -> Fleet:
    return Fleet(tokenizer, reasoning, tool)


@dataclass(frozen=True)
class Recorded:
    """A case as the requests that it makes of derender."""

    case: dict[str, Any]
    ids: list[int]
    prompt: list[int]

    @property
    def chat(self) -> dict[str, Any]:
        fields = ("tools", "tool_choice", "chat_template_kwargs")
        given = {name: self.case[name] for name in fields if self.case.get(name)}
        if not given.get("tools"):
            given.pop("tool_choice", None)
        messages = [{"role": "user", "content": "x"}]
        return {"messages": messages, "logprobs": True, "return_token_ids": True, **given}

    def choice(self, ids: list[int], finish: str | None) -> dict[str, Any]:
        entries = [{"token_id": i, "logprob": -0.5, "top_logprobs": []} for i in ids]
        return {"index": 0, "token_ids": ids, "finish_reason": finish, "logprobs": {"content": entries}}

    def whole(self, derenderer: Derenderer) -> Any:
        choice = self.choice(self.ids, self.finish)
        body = {
            "generate_response": {"request_id": REQUEST_ID, "choices": [choice]},
            "chat_request": self.chat,
            "prompt_token_ids": self.prompt,
        }
        return json.loads(derenderer.chat(json.dumps(body).encode()))

    def call(self, derenderer: Derenderer, ids: list[int], finish: str | None, state: Any) -> bytes:
        body = {
            "stream": True,
            "generate_chunk": {"request_id": REQUEST_ID, "choices": [self.choice(ids, finish)]},
            "stream_state": state,
            "chat_request": self.chat,
            "prompt_token_ids": self.prompt,
        }
        return derenderer.chat(json.dumps(body).encode())

    @property
    def finish(self) -> str:
        return self.case.get("finish_reason") or "stop"

    def pieces(self, rng: random.Random) -> list[tuple[list[int], str | None]]:
        cuts = sorted(rng.choices(range(len(self.ids) + 1), k=rng.randrange(1, 10)))
        edges = [0, *cuts, len(self.ids)]
        pieces = [self.ids[a:b] for a, b in pairwise(edges)]
        return [(ids, self.finish if n == len(pieces) - 1 else None) for n, ids in enumerate(pieces)]


def opening(recorded: Recorded, state: Any = None) -> dict[str, Any]:
    return {
        "endpoint": "chat",
        "request_id": REQUEST_ID,
        "request": recorded.chat,
        "prompt_token_ids": recorded.prompt,
        "stream_state": state,
    }


def session(derenderer: Derenderer) -> Session:
    return Session(
        derenderer,
        Budget(99, 1 << 30),
        max_frames=4096,
        snapshot_tokens=7,
        idle_seconds=9.0,
        clock=lambda: 0.0,
    )


def say(live: Session, *frames: dict[str, Any]) -> list[Any]:
    answers: list[Any] = json.loads(live.receive(json.dumps(frames).encode()))
    assert not any("error" in answer for answer in answers), answers
    return answers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_way_gives_the_same_bytes(case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(case)
    names = case["format"]
    servers = fleet(tokenizer, names["reasoning_parser"], names["tool_parser"])
    recorded = Recorded(
        case, tokenizer.encode(case["output_text"]), tokenizer.encode(case.get("prompt_tail") or "") or [0]
    )
    rng = random.Random(case["id"])
    pieces = recorded.pieces(rng)
    state: Any = None
    answers: list[Any] = []
    lossy: Session | None = None
    saved: Any = None
    since: list[int] = []
    steady = session(servers.cached)
    for number, (ids, finish) in enumerate(pieces):
        ways = (servers.cached, servers.uncached, servers.single, rng.choice(servers.workers))
        first, *others = [recorded.call(way, ids, finish, state) for way in ways]
        assert all(other == first for other in others)
        recorded.call(servers.single, [0], None, None)  # another stream takes its only place
        answer = json.loads(first)
        frame: dict[str, Any] = {"stream": 1, "chunk": {"choices": [recorded.choice(ids, finish)]}}
        [said] = say(steady, frame | ({} if number else {"open": opening(recorded)}))
        assert (said["chunk"], said["derender"]) == (answer["chunk"], answer["derender"])
        # A session on some worker that is lost now and then: elsewhere, what was read since is read again.
        if lossy is None or rng.random() < 0.3:
            lossy = session(rng.choice(servers.workers))
            again = {"choices": [recorded.choice(since, None)] if since or number else []}
            say(lossy, {"stream": 1, "open": opening(recorded, saved), "chunk": again})
        [said] = say(lossy, frame)
        if number or since:
            assert (said["chunk"], said["derender"]) == (answer["chunk"], answer["derender"])
        since += ids
        if "stream_state" in said:
            assert said["stream_state"] == answer["stream_state"]
            saved, since = said["stream_state"], []
        state = answer["stream_state"]
        answers.append(answer)
    whole = recorded.whole(servers.cached)
    assert folded(answers) == unfolded(whole)
    # Every token of the engine is accounted for once: as an ID, as a logprob, and in usage.
    assert folded(answers)["token_ids"] == recorded.ids
    assert len(folded(answers)["logprobs"]) == len(recorded.ids) == whole["usage"]["completion_tokens"]
    assert answers[-1]["derender"]["completion_tokens"] == len(recorded.ids)
