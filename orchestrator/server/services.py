"""Everything that requests share in one process: transports, hop clients, pools, counters; made and closed
together."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import SecretStr

from orchestrator.core.common import Common
from orchestrator.core.item_store import ItemStore
from orchestrator.core.kv_params import UsedParams
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.membership import Key
from orchestrator.core.parity import Role
from orchestrator.core.prefix import PrefixIndex, block_hashes
from orchestrator.core.request_machine import Policy, build_table
from orchestrator.core.request_records import RequestRecords
from orchestrator.core.selection import Affinity, Candidate, PolicyName
from orchestrator.hops.decode import DecodeClient
from orchestrator.hops.derender import DerenderClient
from orchestrator.hops.encode import EncodeClient
from orchestrator.hops.errors import Absent, GivenUp, HopError, HopName, Misconfigured, NoMembers, Unreachable
from orchestrator.hops.prefill import PrefillClient, abort
from orchestrator.hops.render import RenderClient
from orchestrator.hops.sessions import SessionPool
from orchestrator.hops.tls import Tls
from orchestrator.hops.transport import Transport
from orchestrator.pool.discovery import Answer
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.admission import Admission
from orchestrator.server.conversations import KeptConversations
from orchestrator.server.drains import Drains
from orchestrator.server.fleet import Fleet, FleetLimits
from orchestrator.server.integrity import Integrity
from orchestrator.server.kept_turns import KeptTurns
from orchestrator.server.kv_indexes import KvIndexes
from orchestrator.server.metrics import Metrics
from orchestrator.server.sources import declared_facts, fixed_members, sources
from orchestrator.server.stores import open_store, open_turn_store
from orchestrator.server.supervisor import Supervisor
from orchestrator.server.tracing import Tracing
from orchestrator.settings import Settings
from render_tier.protocol.errors import Unavailable

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange

log = structlog.get_logger(__name__)


class Services:
    """Must be made inside a running event loop."""

    def __init__(self, settings: Settings, workers_directory: Path | None = None) -> None:
        self.settings = settings
        self.now = asyncio.get_running_loop().time
        self.started_at = time.monotonic()
        self.integrity = Integrity()
        self.supervisor = Supervisor(self.integrity)
        self.exchanges: set[Exchange] = set()
        self.tracing = Tracing()
        """Replaced before the first request where traces are wanted."""
        self.used_params = UsedParams(settings.limits.remembered_params)
        members, timeouts = settings.members, settings.timeouts
        self._tls = Tls(members.tls.ca, members.tls.certificate, members.tls.key)
        # Probes do not count as open exchanges: they run when the process is idle.
        self._probe_transport = self._transport(members.engine_api_key, counted=False)
        self._render_transport = self._transport(members.render_api_key)
        self.engine_transport = self._transport(members.engine_api_key)
        self.render_client = RenderClient(self._render_transport)
        self.derender_client = DerenderClient(self._render_transport)
        sessions = settings.sessions
        self.sessions = (
            SessionPool(
                self._render_transport,
                streams_per_connection=sessions.streams_per_connection,
                connect_timeout=timeouts.connect,
                answer_within=timeouts.derender,
                heartbeat=sessions.heartbeat,
                recheck=sessions.recheck,
                clock=asyncio.get_running_loop().time,
            )
            if sessions.enabled
            else None
        )
        self.encode_client = EncodeClient(self.engine_transport)
        self.prefill_client = PrefillClient(self.engine_transport)
        self.decode_client = DecodeClient(
            self.engine_transport.connections,
            first_timeout=timeouts.decode_first,
            idle_timeout=timeouts.decode_idle,
            max_event_bytes=settings.limits.event_bytes,
            max_error_bytes=settings.limits.error_bytes,
            on_exchange=self._count_exchange,
        )
        # Render has no side effect, so asking costs nothing; and a stream under way needs some derender.
        self.render_pool = self._pool("render", settings.selection.render, asks_the_dead=True)
        self.encode_pool = self._pool("encode", settings.selection.encode)
        self.prefill_pool = self._pool("prefill", settings.selection.prefill)
        self.decode_pool = self._pool("decode", settings.selection.decode)
        self.pools = (self.render_pool, self.encode_pool, self.prefill_pool, self.decode_pool)
        by_role = {pool.role: pool for pool in self.pools}
        self.metrics = Metrics(self.integrity, self.pools, settings.server.recent_requests)
        self.records = RequestRecords(settings.server.explained_requests)
        self.store = open_store(
            settings.store, self.now, lambda operation: self.metrics.store_failures.labels(operation).inc()
        )
        self.kept_turns = KeptTurns(
            settings.turns,
            open_turn_store(settings.turns, self.store, self.now),
            self.decode_pool,
            self.metrics,
            self.used_params,
            self.now,
        )
        names_images = settings.policy.known_images == "named"
        self.items = ItemStore(settings.limits.kept_image_bytes if names_images else 0)
        self.metrics.kept_images.set_function(lambda: self.items.bytes)
        self.conversations = KeptConversations(settings.conversations, self.store, self.metrics, self.now)
        waited, refusals = self.metrics.queue_seconds, self.metrics.refusals
        self.admission = Admission(
            settings.admission,
            by_role,
            self.integrity,
            on_let_in=lambda gate, seconds: waited.labels(gate).observe(seconds),
            on_refused=lambda gate, cause: refusals.labels(gate, cause).inc(),
        )
        self.metrics.watch_gates(self.admission.gates.values())
        self.kv_indexes = KvIndexes(settings, self.pools, self.metrics)
        health = settings.health
        self.fleet = Fleet(
            # In the order of judgement: whom encoders differ from stays.
            {
                pool.role: pool
                for pool in (self.render_pool, self.decode_pool, self.prefill_pool, self.encode_pool)
            },
            fixed_members(settings),
            sources(settings),
            declared=declared_facts(settings),
            min_version=settings.parity.min_version,
            limits=FleetLimits(health.interval, settings.parity.recheck, settings.membership.timeout),
            probe=self._probe,
            get=self._get,
            on_change=self._member_changed,
        )
        self.metrics.watch_sources(self.fleet.sources)
        policy = settings.policy
        self.policy = Policy(
            held_kv=policy.held_kv,
            abort_decode=policy.abort_decode,
            prefill_failure=policy.prefill_failure,
            prefill_attempts=policy.prefill_attempts,
            decode_attempts=policy.decode_attempts,
            continuations=policy.continuations,
        )
        self.table = build_table(self.policy)
        self.draining = False
        """No new requests; those under way are finished."""
        self.drains = Drains(workers_directory, health.interval, self._drained)
        self._following: asyncio.Task[None] | None = None

    @property
    def disaggregated(self) -> bool:
        """Four hops, where there are prefill members or are to be; three otherwise."""
        return self.settings.expects("prefill") or self.fleet.has_had("prefill")

    @property
    def encodes(self) -> bool:
        """Images go to encoders first, where there are any or are to be."""
        return self.settings.expects("encode") or self.fleet.has_had("encode")

    def missing_roles(self) -> list[str]:
        """Roles that are needed and have no member that is well."""
        needed = [self.render_pool, self.decode_pool]
        if self.disaggregated:
            needed.append(self.prefill_pool)
        if self.encodes and self.settings.policy.encode_failure == "fail":
            needed.append(self.encode_pool)
        missing: list[str] = [pool.role for pool in needed if not pool.ready]
        if not missing and self.disaggregated and not self.pairable:
            missing.append("prefill")
        return missing

    @property
    def pairable(self) -> frozenset[str]:
        """Configuration generations with prefill and decode members."""
        return self.prefill_pool.generations & self.decode_pool.generations

    def has_engines_for(self, render: Member) -> bool:
        """Whether there are engines for what this render tier renders."""
        if not render.generation:
            return True
        return render.generation in (self.pairable if self.disaggregated else self.decode_pool.generations)

    @property
    def engine_limits(self) -> Common:
        """What every engine can take, as far as is known."""
        found, configured = self.fleet.common, self.settings.policy.vocab_size
        sizes = [size for size in (found.vocab_size, configured) if size is not None]
        return replace(found, vocab_size=min(sizes, default=None))

    @property
    def engine_capabilities(self) -> frozenset[str]:
        """What the configuration says, corrected by what the decode engines report."""
        capabilities: frozenset[str] = self.settings.policy.engine_capabilities
        reported = self.fleet.common.structured_outputs
        if reported is None:
            return capabilities
        return capabilities | {"structured_outputs"} if reported else capabilities - {"structured_outputs"}

    def require_decode(self) -> None:
        """Raises ``NoMembers`` when no decode leg could be sent now. Asked before prefill, whose KV nobody
        would pull."""
        if not self.decode_pool.available:
            raise NoMembers("decode", "no decode engine is available")

    async def start(self) -> None:
        """Begin to follow the members. Returns when each has been looked at once."""
        await self.fleet.start()
        self._following = asyncio.get_running_loop().create_task(self.drains.follow(), name="drains")
        self.kv_indexes.start()

    async def check_health(self) -> None:
        """Look at every member once, now."""
        await self.fleet.look_at_all()

    def end_exchanges(self) -> None:
        """Every request under way ends now, with an error that says why."""
        for exchange in list(self.exchanges):
            exchange.shut_down()

    async def close(self) -> None:
        """Give running requests an end, wait for their clean-up, close the connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self.fleet.close()
        await self.kv_indexes.close()
        self.end_exchanges()
        await self.supervisor.close(self.settings.server.grace)
        if self.sessions is not None:
            await self.sessions.close()
        for transport in (self._probe_transport, self._render_transport, self.engine_transport):
            await transport.close()
        if self.store is not None:
            await self.store.close()
        await self.tracing.close()

    def note_failure(self, pool: Pool, member: Member, error: HopError, leg: str = "") -> None:
        """Log a failed call, count it, and tell the member's breaker."""
        self.metrics.hop_errors.labels(error.hop, type(error).__name__).inc()
        told = {"hop": error.hop, "member": member.url, "leg": leg, "status": error.status}
        if error.client_fault:
            # What was refused is in the request's own line.
            log.debug("hop refused", **told)
        elif isinstance(error, Misconfigured):
            log.error(
                "configuration error: this member refuses what the orchestrator writes; check that its URL"
                " is under the right role and that its version is supported",
                **told,
                detail=error.detail,
            )
        else:
            log.warning("hop failed", **told, error=error.message, detail=error.detail)
        if error.member_fault:
            pool.failed(member)
            member.given.forget()
        if isinstance(error, Absent):
            if member.alive:
                self.fleet.died(pool, member)
        elif isinstance(error, Unreachable | GivenUp):
            self.fleet.doubt(member)

    def require_open(self) -> None:
        """Raises ``Unavailable`` while the server takes no new requests."""
        if self.draining:
            raise Unavailable("the server is draining and takes no new requests")

    def _drained(self, server: bool, members: frozenset[Key]) -> None:
        if server != self.draining:
            log.info("orchestrator drains" if server else "orchestrator takes requests again")
            self.draining = server
        self.fleet.drain_only(members)

    def _member_changed(self, pool: Pool, member: Member) -> None:
        self.admission.members_changed()
        self.kv_indexes.member_changed(pool, member)
        if not member.probed:
            # Whatever it comes back as, it comes back without a cache.
            pool.forget(member)
            for exchange in list(self.exchanges):
                exchange.member_died(member)

    def compare_cached(
        self, pool: Pool, member: Member, chosen: Candidate, affinity: Affinity, reported: int
    ) -> None:
        """Check the indexes against how many tokens the engine found cached. An engine that has far less than
        it was given before has lost its cache, so what is believed of it is dropped."""
        if chosen.reported_tokens is not None and affinity.prompt is not None and member.reports is not None:
            self.kv_indexes.compare(pool.role, member, affinity.prompt, chosen.reported_tokens, reported)
        predicted = 0 if chosen.exact else chosen.cached_blocks * self.settings.selection.prefix_block_tokens
        if not predicted:
            return
        drifted = reported < predicted / 2
        self.metrics.predictions.labels(pool.role, "drifted" if drifted else "held").inc()
        if drifted:
            log.warning("cache prediction", member=member.url, predicted=predicted, reported=reported)
            pool.forget(member)

    @property
    def wants_blocks(self) -> bool:
        """Whether anything looks at the hashes of prompts."""
        return self.prefill_pool.index is not None or self.decode_pool.index is not None

    def affinity(self, session: str | None, prompt: RenderedPrompt) -> Affinity:
        if not self.wants_blocks:
            return Affinity(session)
        selection = self.settings.selection
        return Affinity(
            session,
            block_hashes(
                prompt.identified_ids,
                block=selection.prefix_block_tokens,
                max_blocks=selection.prefix_blocks,
                seed=prompt.cache_identity,
            ),
            self.kv_indexes.looked_up(prompt),
        )

    def note_unusable_prefill(self, member: Member, leg: str, problem: str) -> None:
        self.metrics.unusable_prefills.inc()
        log.warning("unusable prefill", member=member.url, leg=leg, problem=problem)

    def note_stranded(self, reason: str, tokens: int) -> None:
        """KV of a prompt of ``tokens`` is left to its engine's lease."""
        metrics, per_token = self.metrics, self.settings.lease.kv_bytes_per_token
        metrics.stranded.labels(reason).inc()
        metrics.stranded_tokens.labels(reason).inc(tokens)
        if per_token is not None:
            metrics.stranded_bytes.labels(reason).inc(tokens * per_token)

    def abort_soon(
        self, hop: HopName, member_url: str, leg_id: str, on_failed: Callable[[], None] = lambda: None
    ) -> None:
        """Send an abort in the background. Its failure is counted and told to ``on_failed``."""
        self.metrics.aborts.labels(hop).inc()
        self.supervisor.spawn(self._abort(hop, member_url, leg_id, on_failed), f"abort {leg_id}")

    async def _abort(self, hop: HopName, member_url: str, leg_id: str, on_failed: Callable[[], None]) -> None:
        try:
            await abort(self.engine_transport, hop, member_url, leg_id, self.settings.timeouts.abort)
        except HopError as error:
            self.metrics.hop_errors.labels("abort", type(error).__name__).inc()
            on_failed()

    def _transport(self, key: SecretStr | None, *, counted: bool = True) -> Transport:
        limits, timeouts = self.settings.limits, self.settings.timeouts
        return Transport(
            connect_timeout=timeouts.connect,
            keepalive=timeouts.keepalive,
            max_reply_bytes=limits.reply_bytes,
            max_error_bytes=limits.error_bytes,
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else None,
            tls=self._tls,
            on_exchange=self._count_exchange if counted else None,
        )

    def _count_exchange(self, change: int) -> None:
        self.integrity.exchanges += change

    def _pool(
        self,
        role: Role,
        selection: PolicyName,
        *,
        asks_the_dead: bool = False,
    ) -> Pool:
        health = self.settings.health
        return Pool(
            role,
            (),
            selection,
            breaker_threshold=health.breaker_threshold,
            breaker_cooldown=health.breaker_cooldown,
            clock=asyncio.get_running_loop().time,
            draw=random.randrange,
            load_factor=self.settings.selection.load_factor,
            index=PrefixIndex(self.settings.selection.prefix_index_blocks)
            if self.settings.indexes(role)
            else None,
            block_tokens=self.settings.selection.prefix_block_tokens,
            asks_the_dead=asks_the_dead,
        )

    async def _probe(self, role: Role, url: str) -> bool:
        if role != "render":
            return await self._status(url + self.settings.health.path_engine) == 200
        status = await self._status(url + self.settings.health.path_render)
        if status == 404:
            # A render tier without a readiness path is ready when it is alive.
            status = await self._status(f"{url}/health")
        return status == 200

    async def _status(self, url: str) -> int | None:
        answer = await self._get(url)
        return None if answer is None else answer.status

    async def _get(self, url: str) -> Answer | None:
        """None when there was no answer in time."""
        try:
            reply = await self._probe_transport.get(url, self.settings.health.timeout)
        except HopError:
            return None
        return Answer(reply.status, reply.body)
