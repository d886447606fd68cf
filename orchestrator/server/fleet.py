"""The members of all roles over time: sources are followed, members looked at and judged, and the pools told.

A member joins when a source names it. It is looked at (a health path, then what it reports), and engines get
work only when their reports have been read and agree with those of the others (``core.parity``). A member
that was found dead is looked at anew before it gets work again: at the same address there may be another one.
What is known is read again now and then, and at once when a connection to a member was lost.

A member that no source names any more leaves: it gets no new work and is forgotten when what it has is
finished. Draining is the same without leaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from orchestrator.core.capabilities import Facts, from_transfer_params
from orchestrator.core.common import Common, common
from orchestrator.core.membership import ROLES, Key, MemberSpec, change, merged
from orchestrator.core.parity import Joiner, Role, judge
from orchestrator.pool.discovery import Get, Pause, read_engine, read_pause, read_render
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.pool.sources.source import Source
from orchestrator.pool.watch import Watch

log = structlog.get_logger(__name__)

KNOWN_ENGINE_IDS: Final = 64
"""Remembered of one member, which has one for each of its data parallel ranks."""


@dataclass(slots=True, eq=False)
class Followed:
    """A source with what it told last."""

    source: Source
    specs: Sequence[MemberSpec] = ()
    error: str | None = None
    failures: int = 0
    answered: bool = False


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Seconds. ``interval`` is between two looks at a member, ``recheck`` between two readings of what it
    reports, ``first_answers`` how long start waits for sources."""

    interval: float
    recheck: float
    first_answers: float


class Fleet:
    """``fixed`` are members that are always there; ``declared`` are facts of those that declare none
    themselves. ``probe`` says whether a member is well, ``get`` asks it something. ``on_change`` is told of
    each that has come, gone, become well or unwell, or been let in or kept out."""

    def __init__(
        self,
        pools: Mapping[Role, Pool],
        fixed: Sequence[MemberSpec],
        sources: Sequence[Source],
        *,
        declared: Mapping[Role, Facts],
        min_version: str | None,
        limits: FleetLimits,
        probe: Callable[[Role, str], Awaitable[bool]],
        get: Get,
        on_change: Callable[[Pool, Member], None],
    ) -> None:
        self.sources = [Followed(source) for source in sources]
        self.common = Common()
        """What the engines that are in can take."""
        self._pools = pools
        self._fixed = fixed
        self._declared = declared
        self._min_version = min_version
        self._limits = limits
        self._probe = probe
        self._get = get
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._specs: dict[Key, MemberSpec] = {}
        self._drained: frozenset[Key] = frozenset()
        self._seen: set[Role] = set()
        self._watch = Watch(self._look_and_judge, limits.interval)
        self._started = False
        self._following: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()
        self._engine_ids: dict[Member, set[str]] = {}
        self._read_at: dict[Member, float] = {}
        self._apply()

    async def start(self) -> None:
        """Returns when every source has answered, or had its time, and every member been looked at once."""
        self._following = [
            self._loop.create_task(self._follow(followed), name=f"follow {followed.source.name}")
            for followed in self.sources
        ]
        if self.sources:
            try:
                async with asyncio.timeout(self._limits.first_answers):
                    await self._answered.wait()
            except TimeoutError:
                late = [followed.source.name for followed in self.sources if not followed.answered]
                log.warning("no answer from membership sources yet", sources=late)
        await self.look_at_all()
        self._started = True
        for pool, member in self._everybody():
            self._watch.begin(pool, member, at_once=False)

    async def close(self) -> None:
        await self._watch.close()
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)

    async def look_at_all(self) -> None:
        """One look at every member, side by side, and one judgement."""
        everybody = list(self._everybody())
        await asyncio.gather(*(self._look(pool, member) for pool, member in everybody))
        self._judge()
        for pool, member in everybody:
            self._on_change(pool, member)

    def has_had(self, role: Role) -> bool:
        """Some source has named a member of ``role`` at some time."""
        return role in self._seen

    def died(self, pool: Pool, member: Member) -> None:
        """No connection to it could be made: as good as a failed look. The next one that succeeds takes it
        back."""
        self._became(pool, member, well=False)
        self._judge()
        self._on_change(pool, member)

    def doubt(self, member: Member) -> None:
        """A connection to it was lost: look at it now, and read what it reports again."""
        self._read_at.pop(member, None)
        self._watch.soon(member)

    def note_params(self, member: Member, params: Mapping[str, Any]) -> None:
        """What the transfer params of one of its prefills say of a prefill engine."""
        known = self._engine_ids.setdefault(member, set())
        engine_id = params.get("remote_engine_id")
        if isinstance(engine_id, str) and engine_id not in known:
            if known:
                self.doubt(member)
            if len(known) >= KNOWN_ENGINE_IDS:
                known.clear()
            known.add(engine_id)
        said = from_transfer_params(params)
        capabilities = member.capabilities
        if said.tensor_parallel not in (None, capabilities.reported.tensor_parallel):
            member.capabilities = replace(capabilities, reported=said.over(capabilities.reported))
            self._judge()

    # ---- draining ------------------------------------------------------------------------------------------

    @property
    def drained(self) -> frozenset[Key]:
        """By an operator, also those that are no members now."""
        return self._drained

    def drain_only(self, keys: frozenset[Key]) -> None:
        """These and no others are drained, beside those that their sources want drained."""
        if keys == self._drained:
            return
        self._drained = keys
        for pool, member in self._everybody():
            spec = self._specs[pool.role, member.url]
            self._configure(spec, member)
            self._on_change(pool, member)

    # ---- sources -------------------------------------------------------------------------------------------

    async def _follow(self, followed: Followed) -> None:
        def tell(specs: Sequence[MemberSpec]) -> None:
            if followed.error is not None:
                log.info("membership source is well again", source=followed.source.name)
            followed.error = None
            followed.specs = specs
            self._apply()
            self._has_answered(followed)

        def failed(error: str) -> None:
            followed.failures += 1
            if followed.error is None:
                log.warning(
                    "membership source cannot be read; its members stay as they were",
                    source=followed.source.name,
                    error=error,
                )
            followed.error = error
            self._has_answered(followed)

        while True:
            try:
                await followed.source.follow(tell, failed)
            except Exception as error:
                log.error("membership source crashed", source=followed.source.name, exc_info=error)
                failed(f"internal error ({type(error).__name__})")
            await asyncio.sleep(self._limits.interval)

    def _has_answered(self, followed: Followed) -> None:
        followed.answered = True
        if all(each.answered for each in self.sources):
            self._answered.set()

    def _apply(self) -> None:
        """Carry out what the sources say now."""
        now = merged([self._fixed, *(followed.specs for followed in self.sources)])
        made = change(self._specs, now)
        self._specs = now
        for spec in made.left:
            pool = self._pools[spec.role]
            member = pool.leave(spec.url)
            self._watch.end(member)
            self._read_at.pop(member, None)
            self._engine_ids.pop(member, None)
            log.info("member left", role=spec.role, member=spec.url, generation=spec.generation)
            self._on_change(pool, member)
        for spec in made.joined:
            pool = self._pools[spec.role]
            member = pool.join(spec.url, spec.generation)
            member.known, member.admitted = False, spec.role == "render"
            member.same_since = self._loop.time()
            self._seen.add(spec.role)
            self._configure(spec, member)
            log.info("member joined", role=spec.role, member=spec.url, generation=spec.generation)
            if self._started:
                self._watch.begin(pool, member, at_once=True)
            self._on_change(pool, member)
        for spec in made.changed:
            pool = self._pools[spec.role]
            member = next(member for member in pool.members if member.url == spec.url)
            self._configure(spec, member)
            self._on_change(pool, member)
        if made.joined or made.left or made.changed:
            self._judge()

    def _configure(self, spec: MemberSpec, member: Member) -> None:
        drain = spec.drain or spec.key in self._drained
        if drain != member.draining:
            log.info("member drains" if drain else "member takes work again", role=spec.role, member=spec.url)
        member.draining = drain
        declared = spec.declared.over(self._declared[spec.role])
        member.capabilities = replace(member.capabilities, declared=declared)

    # ---- looking and judging -------------------------------------------------------------------------------

    async def _look_and_judge(self, pool: Pool, member: Member) -> None:
        before = (member.probed, member.known, member.admitted, member.paused)
        if await self._look(pool, member):
            self._judge()
        if (member.probed, member.known, member.admitted, member.paused) != before:
            self._on_change(pool, member)
        self._sweep()

    async def _look(self, pool: Pool, member: Member) -> bool:
        """Whether something is known that was not."""
        role, deaths = pool.role, member.deaths
        well = await self._probe(role, member.url)
        facts = None
        if well and (not member.known or self._loop.time() >= self._read_at.get(member, 0.0)):
            read = read_render if role == "render" else read_engine
            facts = await read(member.url, self._get)
        pause = None if well else Pause(told=False, paused=False)
        if well and role != "render" and (facts is not None or member.tells_pauses):
            pause = await read_pause(member.url, self._get)
        if member.leaving or member.deaths != deaths:
            return False  # what was found is of another member, or of one that has died since
        changed = self._became(pool, member, well=well)
        if pause is not None:
            self._note_pause(pool, member, pause)
        if facts is None:
            return changed
        before = member.capabilities.reported
        if member.known:
            facts = facts.over(Facts(tensor_parallel=before.tensor_parallel))  # learned from its answers
        self._read_at[member] = self._loop.time() + self._limits.recheck
        changed = changed or not member.known or facts != before
        member.known = True
        member.capabilities = replace(member.capabilities, reported=facts)
        return changed

    def _sweep(self) -> None:
        """Forget who has left for good: a decode engine not while a prefill engine works whose KV only such
        a one may pull."""
        prefill, decode = self._pools["prefill"], self._pools["decode"]
        self._pools["render"].sweep()
        self._pools["encode"].sweep()
        prefill.sweep()
        orphans = [
            busy
            for busy in (*prefill.members, *prefill.leaving)
            if not busy.idle
            and not any(member.admitted and member.pulls_from(busy) for member in decode.members)
        ]
        decode.sweep(lambda member: member.alive and any(member.pulls_from(busy) for busy in orphans))

    def _note_pause(self, pool: Pool, member: Member, pause: Pause) -> None:
        """What it had cached belongs to the weights that it had."""
        member.tells_pauses = pause.told
        if pause.paused == member.paused:
            return
        member.paused = pause.paused
        log.info("member paused" if pause.paused else "member goes on", role=pool.role, member=member.url)
        member.died(self._loop.time())
        pool.forget(member)

    def _became(self, pool: Pool, member: Member, *, well: bool) -> bool:
        """Whether it was not so before."""
        if well == member.probed:
            return False
        log.info("member health", role=pool.role, member=member.url, healthy=well)
        member.probed = well
        if not well:
            member.died(self._loop.time())
            member.known, member.admitted = False, pool.role == "render"
            member.differences = ()
            self._engine_ids.pop(member, None)
        return True

    def _judge(self) -> None:
        alive = {
            (pool.role, member.url): (pool, member)
            for pool, member in self._everybody()
            if member.probed and member.known
        }
        joiners = [
            Joiner(role, url, member.generation, member.capabilities, member.admitted)
            for (role, url), (_, member) in alive.items()
        ]
        for key, differences in judge(joiners, min_version=self._min_version).items():
            pool, member = alive[key]
            if differences == member.differences and member.admitted != any(d.keeps_out for d in differences):
                continue
            was, member.differences = member.admitted, differences
            member.admitted = not any(difference.keeps_out for difference in differences)
            told = {"role": pool.role, "member": member.url, "differences": [str(d) for d in differences]}
            if not member.admitted:
                log.warning("member kept out", **told)
            elif differences:
                log.warning("member differs", **told)
            else:
                log.info("member let in", role=pool.role, member=member.url)
            if member.admitted != was:
                self._on_change(pool, member)
        engines: dict[Role, list[Facts]] = {
            role: [
                member.capabilities.known
                for member in self._pools[role].members
                if member.probed and member.welcome
            ]
            for role in ROLES
        }
        self.common = common(engines["prefill"], engines["decode"])

    def _everybody(self) -> Iterator[tuple[Pool, Member]]:
        for pool in self._pools.values():
            for member in pool.members:
                yield pool, member
