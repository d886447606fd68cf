"""What the members that are there can do together: the hops of a request, and what its engines can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.core.common import Common
from orchestrator.core.parity import Role
from orchestrator.hops.errors import NoMembers
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.fleet import Fleet
from orchestrator.settings import Settings


class Deployment:
    def __init__(self, settings: Settings, pools: Mapping[Role, Pool], fleet: Fleet) -> None:
        self._settings = settings
        self._pools = pools
        self._fleet = fleet

    @property
    def disaggregated(self) -> bool:
        """Four hops, where there are prefill members or are to be; three otherwise."""
        return self._settings.expects("prefill") or self._fleet.has_had("prefill")

    @property
    def encodes(self) -> bool:
        """Images go to encoders first, where there are any or are to be."""
        return self._settings.expects("encode") or self._fleet.has_had("encode")

    def missing_roles(self) -> list[str]:
        """Roles that are needed and have no member that is well."""
        needed: list[Role] = ["render", "decode"]
        if self.disaggregated:
            needed.append("prefill")
        if self.encodes and self._settings.policy.encode_failure == "fail":
            needed.append("encode")
        missing: list[str] = [role for role in needed if not self._pools[role].ready]
        if not missing and not self.generations:
            # None of them is of a decode engine's generation.
            missing.append("prefill")
        return missing

    @property
    def generations(self) -> frozenset[str]:
        """Configuration generations that have all the engines that a request needs."""
        decode = self._pools["decode"].generations
        return self._pools["prefill"].generations & decode if self.disaggregated else decode

    def has_engines_for(self, render: Member) -> bool:
        """Whether there are engines for what this render tier renders."""
        return not render.generation or render.generation in self.generations

    @property
    def engine_limits(self) -> Common:
        """What every engine can take, as far as is known."""
        found, configured = self._fleet.common, self._settings.policy.vocab_size
        sizes = [size for size in (found.vocab_size, configured) if size is not None]
        return replace(found, vocab_size=min(sizes, default=None))

    @property
    def engine_capabilities(self) -> frozenset[str]:
        """What the configuration says, corrected by what the decode engines report."""
        capabilities: frozenset[str] = self._settings.policy.engine_capabilities
        reported = self._fleet.common.structured_outputs
        if reported is None:
            return capabilities
        return capabilities | {"structured_outputs"} if reported else capabilities - {"structured_outputs"}

    def require_decode(self) -> None:
        """Raises ``NoMembers`` when no decode leg could be sent now. Asked before prefill, whose KV nobody
        would pull."""
        if not self._pools["decode"].available:
            raise NoMembers("decode", "no decode engine is available")
