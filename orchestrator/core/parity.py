"""Whether members may work together: which of them are let in, and what keeps the others out.

Prefill and decode engines exchange KV, so what shapes it must be equal among all that may be paired, which
are those of one configuration generation. Encoders give them what they make of images: they must be of the
same model, and need not agree on more. The first ones let in set what later ones must agree with; a joiner
that differs is kept out and named with the difference, until those that it differs from are gone. Where
nobody is in yet, those that agree with most others go first, so that one wrong member does not keep the right
ones out.

A fact that is not known of either side is not compared. What a member reports is also compared with what is
declared of it, and with what its role needs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from orchestrator.core.capabilities import Capabilities, Facts, Value

Role = Literal["render", "prefill", "decode", "encode"]

Relation = Literal["equal", "at_least", "at_most"]

EQUAL_ENGINES: Final = (
    "model", "revision", "tokenizer", "vocab_size", "dtype", "kv_dtype", "block_size", "kv_layout",
    "connector", "version",
)  # fmt: skip
"""Among all engines of a generation. vLLM refuses KV from another version, or another name of the model."""

EQUAL_IN_ROLE: Final = ("max_model_len", "tokens_only", "structured_outputs")
"""Among the engines of one role: any of them may get a request."""

EQUAL_WITH_ENCODERS: Final = ("model", "revision", "dtype", "version", "ec_connector")
"""Between encoders, and between them and the others."""

EQUAL_RENDERS: Final = ("tokenizer", "vocab_size", "max_model_len")

DECODE_AT_LEAST: Final = ("max_model_len", "tensor_parallel")
"""Decode's must not be smaller than prefill's. A shorter window would fail on long prompts only; fewer ranks
cannot read the KV of more."""

WRONG_ROLE: Final[Mapping[Role, str]] = {"prefill": "kv_consumer", "decode": "kv_producer"}

WRONG_EC_ROLE: Final[Mapping[Role, str]] = {
    # An engine that only produces has no KV cache, and computes no prompt.
    "prefill": "ec_producer",
    "decode": "ec_producer",
    "encode": "ec_consumer",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """``own`` is the member's, ``other`` what it should have been."""

    field: str
    own: Value
    other: Value
    relation: Relation = "equal"
    source: str = ""
    """Whose ``other`` is: a member's URL, or where it is set."""
    keeps_out: bool = True
    """Otherwise it is only shown."""

    def __str__(self) -> str:
        needs = {"equal": "", "at_least": "at least ", "at_most": "at most "}[self.relation]
        return f"{self.field} is {self.own!r}, {self.source} needs {needs}{self.other!r}"

    def as_json(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "own": self.own,
            "needed": self.other,
            "relation": self.relation,
            "source": self.source,
            "keeps_out": self.keeps_out,
        }


@dataclass(frozen=True, slots=True)
class Joiner:
    """A member that is alive and whose capabilities have been read."""

    role: Role
    url: str
    generation: str
    capabilities: Capabilities
    admitted: bool
    """It is in already."""


Verdicts = Mapping[tuple[Role, str], tuple[Difference, ...]]
"""By role and URL. Kept out is who has a difference that says so."""


def judge(joiners: Sequence[Joiner], *, min_version: str | None = None) -> Verdicts:
    """``joiners``: all members that are alive, in the order of the configuration."""
    verdicts: dict[tuple[Role, str], tuple[Difference, ...]] = {}
    renders = _let_in([joiner for joiner in joiners if joiner.role == "render"], verdicts, _with_itself)

    def alone(engine: Joiner) -> list[Difference]:
        return [*_with_itself(engine), *_too_old(engine, min_version), *_with_renders(engine, renders)]

    _let_in([joiner for joiner in joiners if joiner.role != "render"], verdicts, alone)
    return verdicts


def _let_in(
    joiners: Sequence[Joiner],
    verdicts: dict[tuple[Role, str], tuple[Difference, ...]],
    alone: Callable[[Joiner], list[Difference]],
) -> list[Joiner]:
    """Who is in, each generation by itself. ``alone``: what speaks against one whoever else is there."""
    by_generation: dict[str, list[Joiner]] = defaultdict(list)
    for joiner in joiners:
        by_generation[joiner.generation].append(joiner)
    everybody = []
    for group in by_generation.values():
        admitted: list[Joiner] = []
        for joiner in _in_order(group):
            differences = (*alone(joiner), *_with_others(joiner, admitted))
            verdicts[joiner.role, joiner.url] = differences
            if not any(difference.keeps_out for difference in differences):
                admitted.append(joiner)
        everybody += admitted
    return everybody


def _in_order(group: Sequence[Joiner]) -> list[Joiner]:
    """Who is in goes first, then who agrees with most; otherwise the order of the configuration."""
    common: Counter[tuple[str, Value]] = Counter()
    for joiner in group:
        common.update(joiner.capabilities.known.items())

    def agreement(joiner: Joiner) -> int:
        known = joiner.capabilities.known
        return sum(
            common[name, value]
            for name, value in known.items()
            if name in _compared(joiner.role, joiner.role)
        )

    return sorted(group, key=lambda joiner: (not joiner.admitted, -agreement(joiner)))


def _compared(role: Role, other: Role) -> tuple[str, ...]:
    """What must be equal between members of the two roles."""
    if "render" in (role, other):
        return EQUAL_RENDERS if role == other else ()
    if "encode" in (role, other):
        return EQUAL_WITH_ENCODERS
    return EQUAL_ENGINES + EQUAL_IN_ROLE if role == other else EQUAL_ENGINES


def _with_itself(joiner: Joiner) -> list[Difference]:
    """Reports against declarations, and against what the role needs."""
    reported, declared = joiner.capabilities.reported, joiner.capabilities.declared
    found = [
        Difference(name, value, wanted, source="the configuration")
        for name, value in reported.items()
        if (wanted := getattr(declared, name)) is not None and wanted != value
    ]
    known = joiner.capabilities.known
    if known.ec_role is not None and known.ec_role == WRONG_EC_ROLE.get(joiner.role):
        right = "ec_producer" if joiner.role == "encode" else "ec_consumer"
        found.append(Difference("ec_role", known.ec_role, right, source=f"a member of role {joiner.role}"))
    kv_role = known.kv_role
    if kv_role is not None and kv_role == WRONG_ROLE.get(joiner.role):
        right = "kv_producer" if joiner.role == "prefill" else "kv_consumer"
        found.append(Difference("kv_role", kv_role, right, source=f"a {joiner.role} member"))
    return found


def _too_old(engine: Joiner, min_version: str | None) -> list[Difference]:
    version = engine.capabilities.known.version
    if version is None or min_version is None or release(version) >= release(min_version):
        return []
    return [Difference("version", version, min_version, "at_least", "parity.min_version")]


def _with_renders(engine: Joiner, renders: Sequence[Joiner]) -> list[Difference]:
    """Another tokenizer, or a vocabulary that lacks IDs of the render tier's, keeps an engine out. A shorter
    window is only shown, since a prompt that does not fit it is refused before the engine sees it."""
    own = engine.capabilities.known
    for render in renders:
        if render.generation not in ("", engine.generation):
            continue
        theirs = render.capabilities.known
        found = []
        if _both(own.tokenizer, theirs.tokenizer) and own.tokenizer != theirs.tokenizer:
            found.append(_difference("tokenizer", own, theirs, "equal", render.url))
        # An encoder gets one image, not a prompt.
        for name in ("vocab_size",) if engine.role == "encode" else ("vocab_size", "max_model_len"):
            if _smaller(own, theirs, name):
                keeps_out = name != "max_model_len"
                found.append(_difference(name, own, theirs, "at_least", render.url, keeps_out=keeps_out))
        return found
    return []


def _with_others(joiner: Joiner, admitted: Sequence[Joiner]) -> list[Difference]:
    """One difference for each fact: with the first admitted member that does not go with it."""
    found: dict[str, Difference] = {}
    for other in admitted:
        for difference in _between(joiner, other):
            found.setdefault(difference.field, difference)
    return list(found.values())


def _between(joiner: Joiner, other: Joiner) -> Iterator[Difference]:
    own, others = joiner.capabilities.known, other.capabilities.known
    for name, relation in _clashes(joiner.role, own, other.role, others):
        yield _difference(name, own, others, relation, other.url)


def _clashes(role: Role, own: Facts, other_role: Role, others: Facts) -> Iterator[tuple[str, Relation]]:
    """The facts of two members that do not go together, each with what the second one needs of the first."""
    for name in _compared(role, other_role):
        if _both(getattr(own, name), getattr(others, name)) and getattr(own, name) != getattr(others, name):
            yield name, "equal"
    if role == "decode" and other_role == "prefill":
        yield from ((name, "at_least") for name in DECODE_AT_LEAST if _smaller(own, others, name))
    if role == "prefill" and other_role == "decode":
        yield from ((name, "at_most") for name in DECODE_AT_LEAST if _smaller(others, own, name))


@lru_cache(maxsize=4096)
def fits(prefill: Facts, decode: Facts) -> bool:
    """Whether KV of an engine of which the first is known may be pulled by one of which the second is."""
    return not any(True for _ in _clashes("decode", decode, "prefill", prefill))


def _both(own: Value | None, other: Value | None) -> bool:
    return own is not None and other is not None


def _smaller(own: Facts, other: Facts, name: str) -> bool:
    """The named number, where both are known."""
    mine, theirs = getattr(own, name), getattr(other, name)
    return mine is not None and theirs is not None and mine < theirs


def _difference(
    name: str, own: Facts, other: Facts, relation: Relation, source: str, *, keeps_out: bool = True
) -> Difference:
    return Difference(name, getattr(own, name), getattr(other, name), relation, source, keeps_out)


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: ``0.32.1rc2+cpu`` is (0, 32, 1)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()
