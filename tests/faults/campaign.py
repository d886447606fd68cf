"""A randomized fault campaign: requests with planned faults on every hop, and what must hold for each.

Everything about request ``n`` of a campaign follows from the campaign's seed and ``n``: what it asks, which
faults its calls meet, when its client leaves. The tiers recognise the request in every call (its seed and its
tokens carry ``n``), so plans do not depend on how requests interleave, and one request replays alone.
Members are killed and come back while the campaign runs; a request that was under way then may fail without a
fault of its own, but never with anything else than an honest error.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.orchestrator.conftest import Stack
from tests.orchestrator.faults import (
    CHAT,
    GENERATE,
    Answer,
    ErrorEvent,
    Expired,
    Fault,
    Garbage,
    HalfClose,
    Reused,
    Slow,
    Stall,
    Status,
)

HOPS = ("render", "prefill", "decode", "derender")
REFUSAL = b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}'
CHOICES_APART = 10
"""Seeds of consecutive requests; choice ``c`` of request ``n`` samples with seed ``10 n + c``."""

SETTINGS: dict[str, Any] = {
    # On the clock of `clock.py`.
    "timeouts": {
        "connect": 1.0, "render": 0.4, "prefill": 0.4, "decode_first": 0.4, "decode_idle": 0.4,
        "derender": 0.4, "cleanup": 0.6, "abort": 0.4, "request": 20.0,
    },
    "health": {"interval": 0.05, "breaker_cooldown": 0.1},
}  # fmt: skip


def any_hop(draw: random.Random) -> Fault:
    makers: list[Callable[[], Fault]] = [
        lambda: Status(draw.choice([429, 500, 502, 503, 504, 401])),
        lambda: Status(400, REFUSAL),
        lambda: Status(500, b"\xff not json"),
        HalfClose,
        lambda: Garbage(draw.choice([b"", b"[]", b"{}", b"\xff\xfe", b'{"choices": 3}'])),
        Stall,
        lambda: Slow(draw.choice([0.01, 0.05])),
    ]
    return draw.choice(makers)()


def prefill_only(draw: random.Random) -> Fault:
    params = {"do_remote_prefill": True, "remote_host": "h"}
    return draw.choice(
        [
            Answer(finish_reason="stop"),
            Answer({"kv_transfer_params": None}),
            Answer({"kv_transfer_params": params}),
            Answer({"choices": []}),
            Expired(),
            Reused(),
        ]
    )


def decode_only(draw: random.Random) -> Fault:
    after = draw.randrange(6)
    faults = [
        HalfClose(after),
        Garbage(after=after),
        ErrorEvent(after),
        Stall(after),
        Answer(finish_reason="abort"),
    ]
    return draw.choice(faults)


@dataclass
class Case:
    """Request ``number``, as the campaign's ``seed`` makes it."""

    seed: int
    number: int
    body: dict[str, Any] = field(init=False)
    faults: dict[str, list[Fault]] = field(init=False)
    leaves_after: float | None = field(init=False)
    disturbed: bool = False
    """A member was killed while the request was under way."""

    def __post_init__(self) -> None:
        draw = random.Random(f"{self.seed}/{self.number}")
        prompt = " ".join("w" * draw.randint(1, 9) for _ in range(draw.randint(1, 12)))
        self.body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": draw.choice([1, 2, 5, 5, 12]),
            "seed": CHOICES_APART * self.number,
            "stream": draw.random() < 0.6,
        }
        if draw.random() < 0.2:
            self.body["n"] = 2
        if draw.random() < 0.2:
            self.body["stop"] = [self._piece(0, draw.randrange(12))]
        if draw.random() < 0.1:
            self.body["timeout"] = 0.3
        self.faults = defaultdict(list)
        for _ in range(draw.choice([0, 0, 1, 1, 2, 3, 5])):
            hop = draw.choice(HOPS)
            special = {"prefill": prefill_only, "decode": decode_only}.get(hop, any_hop)
            fault = special(draw) if draw.random() < 0.5 else any_hop(draw)
            self.faults[hop] += [None] * draw.randrange(3) if hop == "derender" else []
            self.faults[hop].append(fault)
        self.leaves_after = draw.uniform(0.0, 0.06) if draw.random() < 0.12 else None
        self.plan = str({hop: faults for hop, faults in self.faults.items() if faults})
        self.planned = [fault for faults in self.faults.values() for fault in faults if fault is not None]

    def _piece(self, choice: int, i: int) -> str:
        return f"t{100 + 1000 * (CHOICES_APART * self.number + choice) + i}"

    def expected(self, choice: int) -> str:
        pieces = [self._piece(choice, i) for i in range(self.body["max_tokens"])]
        [stop] = self.body.get("stop") or [None]
        if stop in pieces:
            pieces = pieces[: pieces.index(stop)]
        return "".join(f"{piece} " for piece in pieces)

    @property
    def choices(self) -> range:
        return range(self.body.get("n", 1))

    @property
    def must_succeed(self) -> bool:
        return not (self.planned or self.disturbed or "timeout" in self.body)

    def __str__(self) -> str:
        return (
            f"request {self.number} of seed {self.seed}: {self.body} {self.plan} leaves={self.leaves_after}"
        )


class Wrong(AssertionError):
    """What a client saw is neither the right answer nor one honest error."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Wrong(what)


def read_error(text: str | bytes, status: int | None = None) -> int:
    """The code of a well-formed error body."""
    error = json.loads(text)["error"]
    check(isinstance(error["message"], str) and bool(error["message"]), "an error without a message")
    check(isinstance(error["type"], str) and bool(error["type"]), "an error without a type")
    check(status is None or error["code"] == status, "the error's code is not the status")
    check("secrets" not in error["message"] and "not json" not in error["message"], "a member's own words")
    code: int = error["code"]
    return code


HONEST = {429, 500, 502, 503, 504}


def is_honest(case: Case, code: int) -> bool:
    """A refusal is passed on in kind, so it needs one that was planned."""
    refused = any(isinstance(fault, Status) and fault.status == 400 for fault in case.planned)
    return code in HONEST or (code == 400 and refused)


def judge_status(case: Case, status: int, text: bytes) -> str:
    """An answer that is not 200."""
    code = read_error(text, status)
    check(is_honest(case, code), f"status {code} has no cause")
    check("internal error" not in text.decode(), "a task crashed")
    check(not case.must_succeed, f"failed without a fault: {text!r}")
    return str(code)


def judge_whole(case: Case, text: bytes) -> str:
    choices = json.loads(text)["choices"]
    check(len(choices) == len(case.choices), "a choice is missing")
    for choice in choices:
        expected = case.expected(choice["index"])
        check(choice["message"]["content"] == expected, f"{choice} is not {expected!r}")
        check(choice["finish_reason"] in ("length", "stop"), f"{choice}")
    return "whole"


def judge_stream(case: Case, text: bytes, complete: bool) -> str:
    """``complete``: the client has read to the end of the body."""
    events = text.decode().split("\n\n")
    if complete:
        check(events[-2:] == ["data: [DONE]", ""], f"the stream does not end with [DONE]: {events[-3:]}")
        check(events.count("data: [DONE]") == 1, "[DONE] twice")
    seen: dict[int, str] = dict.fromkeys(case.choices, "")
    finished: set[int] = set()
    errors = 0
    for event in events[:-2] if complete else events[:-1]:
        payload = event.removeprefix("data: ")
        if payload == "[DONE]":
            continue
        message = json.loads(payload)
        check(not errors, "something follows the error")
        if "error" in message:
            errors += 1
            check(is_honest(case, read_error(payload)), f"an odd error event: {payload}")
            continue
        for choice in message["choices"]:
            index = choice["index"]
            check(index not in finished, "output after the finish reason")
            seen[index] += choice["delta"].get("content") or ""
            if choice["finish_reason"] is not None:
                finished.add(index)
    for index, content in seen.items():
        expected = case.expected(index)
        check(expected.startswith(content), f"{content!r} is not the beginning of {expected!r}")
        if index in finished:
            check(content == expected, f"finished with {content!r}, not {expected!r}")
    if complete and not errors:
        check(finished == set(case.choices), "ended without a finish reason and without an error")
    check(not (errors and case.must_succeed), "failed without a fault")
    return "error event" if errors else "stream"


@dataclass
class Campaign:
    """Runs cases against one stack, at most ``at_once`` at a time."""

    stack: Stack
    seed: int
    kills: bool = True
    at_once: int = 24
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    open: dict[int, Case] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    async def run(self, numbers: Iterable[int]) -> None:
        for tier in self.stack.tiers:
            tier.plan = self._fault_for
        waiting = iter(numbers)
        chaos = asyncio.create_task(self._chaos()) if self.kills else None
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def worker() -> None:
                for number in waiting:
                    await self._one(session, Case(self.seed, number))

            await asyncio.gather(*(worker() for _ in range(self.at_once)))
        if chaos is not None:
            chaos.cancel()
            await asyncio.wait([chaos])
            if not chaos.cancelled():
                chaos.result()
        for tier in self.stack.tiers:
            if tier.dead:
                await tier.revive()

    async def _one(self, session: aiohttp.ClientSession, case: Case) -> None:
        self.open[case.number] = case
        case.disturbed = any(tier.dead for tier in self.stack.tiers)
        received = bytearray()
        try:
            async with asyncio.timeout(case.leaves_after):
                outcome = await self._ask(session, case, received)
        except TimeoutError:
            outcome = "client left"
        except (Wrong, ValueError, KeyError, aiohttp.ClientError) as error:
            self.failures.append(f"{case}\n    {type(error).__name__}: {error}")
            outcome = "WRONG"
        finally:
            del self.open[case.number]
        self.outcomes[outcome] += 1

    async def _ask(self, session: aiohttp.ClientSession, case: Case, received: bytearray) -> str:
        async with session.post(f"{self.stack.url}{CHAT}", json=case.body) as response:
            try:
                async for piece in response.content.iter_any():
                    received += piece
            except asyncio.CancelledError:
                if response.status == 200 and case.body["stream"]:
                    judge_stream(case, bytes(received), complete=False)
                raise
            if response.status != 200:
                return judge_status(case, response.status, bytes(received))
            if case.body["stream"]:
                return judge_stream(case, bytes(received), complete=True)
            return judge_whole(case, bytes(received))

    def _fault_for(self, path: str, body: dict[str, Any]) -> Fault:
        if path == GENERATE:
            seed = body["sampling_params"]["seed"]
            decode = (body.get("kv_transfer_params") or {}).get("do_remote_prefill") or body["stream"]
            hop = "decode" if decode else "prefill"
        elif path.endswith("/render"):
            seed, hop = body["seed"], "render"
        else:
            hop = "derender"
            reply = body.get("generate_chunk") or body["generate_response"]
            tokens = [token for choice in reply["choices"] for token in choice["token_ids"]]
            if not tokens:
                return None
            seed = (tokens[0] - 100) // 1000
        case = self.open.get(seed // CHOICES_APART)
        return case.faults[hop].pop(0) if case is not None and case.faults[hop] else None

    async def _chaos(self) -> None:
        """Kill one member after the other, each for a moment."""
        draw = random.Random(self.seed)
        while True:
            await asyncio.sleep(draw.uniform(0.2, 0.6))
            tier = draw.choice(self.stack.tiers)
            for case in self.open.values():
                case.disturbed = True
            await tier.kill()
            await asyncio.sleep(draw.uniform(0.05, 0.2))
            for case in self.open.values():
                case.disturbed = True
            await tier.revive()
            # Whoever could not be reached counts as dead until a probe succeeds.
            await self.stack.services.check_health()
            for case in self.open.values():
                case.disturbed = True
