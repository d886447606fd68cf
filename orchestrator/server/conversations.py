"""What a chat goes on from: the token IDs of its conversation's last turn, which the client names by an id or
carries itself, and what becomes of them.

The turn is written into the body that render is given, as if the client had carried it, so whether it is the
beginning of the prompt is render's to say (docs/render.md). What is kept is the first choice of an answer
that has one, under the tenant's own name for the conversation; reading leaves it there, so that a turn can
be asked again or go on in two ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from orchestrator.core.assembly import with_fields
from orchestrator.core.conversations import Conversations, Spoken, conversation_key, unpack
from orchestrator.core.legs import RenderedPrompt
from orchestrator.hops.errors import HopError
from orchestrator.hops.shared_store import SharedStore, StoreDown
from orchestrator.server.intake import Continues
from orchestrator.server.metrics import Metrics
from orchestrator.turn_settings import ConversationSettings
from render_tier.protocol.errors import ApiError, BadGateway, ContinuationRefused, Unavailable
from render_tier.protocol.generate import ContinuationReport
from render_tier.protocol.unreadable import UNREADABLE

Missing = Literal["unknown_conversation", "store_unavailable"]
DETAILS: Final[dict[str, str]] = {
    "unknown_conversation": "nothing is kept under this conversation_id: it is new, or its time is over",
    "store_unavailable": "what is kept of conversations cannot be read at the moment",
    "not_supported": "the render tier does not tell whether the prompt goes on from the turn before",
}


class KeptConversations:
    """In this process, or where all orchestrators see them. ``now``: a monotonic clock in seconds."""

    def __init__(
        self,
        settings: ConversationSettings,
        shared: SharedStore | None,
        metrics: Metrics,
        now: Callable[[], float],
    ) -> None:
        self._seconds = settings.seconds
        self._shared = shared
        self._metrics = metrics
        self._now = now
        self._own = Conversations(settings.entries, settings.total_bytes, settings.seconds)

    def __repr__(self) -> str:
        return f"<KeptConversations {self._own!r} {self._shared!r}>"

    def of(self, asked: Continues | None, tenant: str, model: str | None) -> Conversation | None:
        """None where the client asked for nothing of the kind."""
        return None if asked is None else Conversation(self, asked, tenant, model)

    async def find(self, key: bytes) -> Spoken | Missing:
        if self._shared is None:
            kept = self._own.get(key, self._now())
        else:
            try:
                kept = await self._shared.get(_name(key))
            except StoreDown:
                return "store_unavailable"
        found = None if kept is None else unpack(kept)
        return found or "unknown_conversation"

    async def keep(self, key: bytes, turn: Spoken) -> None:
        """Or not, where the store is down: then the next turn is rendered whole."""
        if self._shared is None:
            self._own.put(key, turn.pack(), self._now())
            return
        with suppress(StoreDown):
            await self._shared.put(_name(key), turn.pack(), self._seconds)

    def count(self, result: str) -> None:
        self._metrics.conversations.labels(result).inc()


class Conversation:
    """Of one request."""

    def __init__(self, kept: KeptConversations, asked: Continues, tenant: str, model: str | None) -> None:
        self._kept = kept
        self._asked = asked
        name = asked.conversation_id
        self._key = None if name is None else conversation_key(tenant, model, name)
        self._found = False
        self._missing: Missing | None = None
        self.report: ContinuationReport | None = None
        """What became of it, once render has answered."""

    async def body(self, body: bytes) -> bytes:
        """The request for render. Raises ``ApiError`` where there is nothing to go on from and the client
        wants nothing else."""
        if self._asked.carried or self._key is None:
            return body
        found = await self._kept.find(self._key)
        if isinstance(found, Spoken):
            self._found = True
            return with_fields(body, {"continuation": found})
        self._missing = found
        if self._asked.strict:
            self._kept.count(found)
            detail = f"{found}: {DETAILS[found]}"
            if found == "store_unavailable":
                raise Unavailable(detail, param="conversation_id")
            raise ContinuationRefused(detail, param="conversation_id")
        return body

    def lets_go(self, error: HopError) -> bool:
        """Whether render refuses IDs that were kept here, so that it must be asked without: they may be of
        another model's vocabulary that was served under this name before."""
        if not self._found or not error.client_fault:
            return False
        if error.param is None or not error.param.startswith("continuation."):
            return False
        self._missing = "unknown_conversation"
        self._found = False
        return True

    def rendered(self, prompt: RenderedPrompt) -> None:
        """Take render's report. Raises ``ApiError`` where a client that insists would get another prompt."""
        told = prompt.fields.get("continuation")
        try:
            report = None if told is None else msgspec.json.decode(told, type=ContinuationReport)
        except UNREADABLE:
            report = None
        if report is None:
            reason = self._missing or "not_supported"
            report = ContinuationReport(exact=False, kept_tokens=0, reason=reason, detail=DETAILS[reason])
        if report.exact:
            self._kept.count("exact")
        else:
            self._kept.count(report.reason if report.reason in DETAILS else "parted")
        if self._asked.strict and not report.exact:
            raise _refused(report)
        self.report = report

    @property
    def header(self) -> bytes | None:
        """``exact; kept_tokens=12``, or ``parted; kept_tokens=0; reason=...; message=1``; None before render
        has answered."""
        report = self.report
        if report is None:
            return None
        parts = [f"{'exact' if report.exact else 'parted'}; kept_tokens={report.kept_tokens}"]
        if report.reason is not None:
            parts.append(f"reason={report.reason}")
        if report.message is not None:
            parts.append(f"message={report.message}")
        return "; ".join(parts).encode()

    def keeps(self, prompt: RenderedPrompt) -> bool:
        """Whether the answer to ``prompt`` is what a next turn goes on from."""
        return self._key is not None and prompt.choices == 1

    async def keep(self, prompt: RenderedPrompt, output: Sequence[int]) -> None:
        """Once the answer is known to be complete, and before its client knows."""
        assert self._key is not None
        await self._kept.keep(self._key, Spoken(prompt.token_ids, output))


def _refused(report: ContinuationReport) -> ApiError:
    """A render tier that refuses says so itself; this one did not heed ``continuation_strict``."""
    if report.reason == "not_supported":
        return BadGateway(f"not_supported: {DETAILS['not_supported']}", param="continuation_strict")
    return ContinuationRefused(f"{report.reason}: {report.detail}", param="continuation")


def _name(key: bytes) -> str:
    return f"conversation:{key.hex()}"
