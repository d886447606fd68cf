"""Everything that requests share in one process: transports, hop clients, pools, counters; made and closed
together."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import SecretStr

from orchestrator.core.item_store import ItemStore
from orchestrator.core.kv_params import UsedParams
from orchestrator.core.membership import Key
from orchestrator.core.parity import Role
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.request_machine import Policy, build_table
from orchestrator.core.request_records import RequestRecords
from orchestrator.core.selection import PolicyName
from orchestrator.hops.decode import DecodeClient
from orchestrator.hops.derender import DerenderClient
from orchestrator.hops.encode import EncodeClient
from orchestrator.hops.errors import Absent, GivenUp, HopError, HopName, Misconfigured, Unreachable
from orchestrator.hops.prefill import PrefillClient, abort
from orchestrator.hops.render import RenderClient
from orchestrator.hops.sessions import SessionPool
from orchestrator.hops.tls import Tls
from orchestrator.hops.transport import Transport
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.admission import Admission
from orchestrator.server.conversations import KeptConversations
from orchestrator.server.deployment import Deployment
from orchestrator.server.drains import Drains
from orchestrator.server.fleet import Fleet, FleetLimits
from orchestrator.server.integrity import Integrity
from orchestrator.server.kept_turns import KeptTurns
from orchestrator.server.kv_indexes import KvIndexes
from orchestrator.server.metrics import Metrics
from orchestrator.server.prefix_caches import PrefixCaches
from orchestrator.server.probes import Probes
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
        probes = Probes(self._probe_transport, settings.health)
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
        by_role: dict[Role, Pool] = {pool.role: pool for pool in self.pools}
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
        self.items = ItemStore(settings.limits.kept_image_bytes)
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
        self.prefix_caches = PrefixCaches(settings.selection, by_role, self.kv_indexes, self.metrics)
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
            probe=probes.well,
            get=probes.get,
            on_change=self._member_changed,
        )
        self.metrics.watch_sources(self.fleet.sources)
        self.deployment = Deployment(settings, by_role, self.fleet)
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
