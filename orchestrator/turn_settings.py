"""Settings of what is kept of a turn for the next one of its conversation. Their place is in
``settings.Settings``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from orchestrator.hops.shared_store import check_url
from orchestrator.setting_types import Count, Seconds, Section


class TurnSettings(Section):
    """KV that a decode engine keeps after a turn is read by the prefill engine of the next one, where both
    say that they can (vLLM's ``bidirectional_kv_xfer``; ``declared`` where they do not tell)."""

    reuse: bool = True
    fraction: Annotated[float, Field(gt=0, le=1)] = 2 / 3
    """Our own deadline, as a fraction of the time that the engine keeps it."""
    entries: Count = 10_000
    """Turns that are remembered; with a ``store`` it remembers them."""


class ConversationSettings(Section):
    """Token IDs of the last turn of each conversation that a client names by ``conversation_id``."""

    entries: Count = 10_000
    """That are kept, by each process; with a ``store`` it keeps them, within its own memory."""
    total_bytes: Count = 256 * 2**20
    """Of all of them; a token takes three or so."""
    seconds: Seconds = 3600.0
    """After its last turn a conversation is forgotten."""


class StoreSettings(Section):
    """Redis or Valkey, where several orchestrators keep turns and conversations for each other. Needs the
    extra ``redis``. Nothing is kept there without ``url``."""

    url: SecretStr | None = None
    """``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and database."""
    prefix: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,64}$")] = "pd"
    """Of every key. Orchestrators with the same one share what is kept."""
    timeout: Seconds = 0.1
    """Of one operation, connecting included; then the request goes on without it."""
    pause: Seconds = 1.0
    """After a failure the store is not asked for so long."""
    connections: Count = 16

    @field_validator("url")
    @classmethod
    def _can_be_asked(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            check_url(url.get_secret_value())
        return url
