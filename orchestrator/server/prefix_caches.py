"""What engines are believed to have in their prefix caches: asked before a member is chosen for a prompt, and
checked against what that member then reports."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.parity import Role
from orchestrator.core.prefix import block_hashes
from orchestrator.core.selection import Affinity, Candidate
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.kv_indexes import KvIndexes
from orchestrator.server.metrics import Metrics
from orchestrator.settings import Selections

log = structlog.get_logger(__name__)


class PrefixCaches:
    def __init__(
        self, settings: Selections, pools: Mapping[Role, Pool], kv_indexes: KvIndexes, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._pools = pools
        self._kv_indexes = kv_indexes
        self._metrics = metrics

    def affinity(self, session: str | None, prompt: RenderedPrompt) -> Affinity:
        if all(self._pools[role].index is None for role in ("prefill", "decode")):
            # Nothing looks at the hashes of prompts.
            return Affinity(session)
        blocks = block_hashes(
            prompt.identified_ids,
            block=self._settings.prefix_block_tokens,
            max_blocks=self._settings.prefix_blocks,
            seed=prompt.cache_identity,
        )
        return Affinity(session, blocks, self._kv_indexes.looked_up(prompt))

    def compare(
        self, role: Role, member: Member, chosen: Candidate, affinity: Affinity, reported: int
    ) -> None:
        """``chosen``: ``member`` as it was when it was chosen; ``reported``: how many tokens it has found
        cached. An engine that has far less than it was given before has lost its cache, so what is believed
        of it is dropped."""
        if chosen.reported_tokens is not None and affinity.prompt is not None and member.reports is not None:
            self._kv_indexes.compare(role, member, affinity.prompt, chosen.reported_tokens, reported)
        predicted = 0 if chosen.exact else chosen.cached_blocks * self._settings.prefix_block_tokens
        if not predicted:
            return
        drifted = reported < predicted / 2
        self._metrics.predictions.labels(role, "drifted" if drifted else "held").inc()
        if drifted:
            log.warning("cache prediction", member=member.url, predicted=predicted, reported=reported)
            self._pools[role].forget(member)
