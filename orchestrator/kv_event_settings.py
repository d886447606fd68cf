"""Settings of engines that publish the events of their KV cache. Their place is in ``settings.Settings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from orchestrator.setting_types import Count, Seconds, Section, Url

HOST = "{host}"
"""In a template: the host of the engine's URL."""

Endpoint = Annotated[str, Field(pattern=r"^(tcp://.+:\d+|ipc://.+)$")]
Template = Annotated[str, Field(pattern=r"^tcp://\{host\}:\d+$")]


class KvEvents(Section):
    """Engines that publish the events of their KV cache (vLLM's ``--kv-events-config``, publisher ``zmq``)
    are scored by what they say they hold. Needs the extra ``kv-events``."""

    endpoints: dict[Url, Endpoint] = Field(default_factory=dict)
    """Base URL of an engine to the address of its events."""
    replay: dict[Url, Endpoint] = Field(default_factory=dict)
    """The same to the address of its replays, where it has one."""
    template: Template | None = None
    """The address of the events of every engine that is not in ``endpoints``, whichever source of members
    names it."""
    replay_template: Template | None = None
    topic: str = ""
    index_blocks: Count = 400_000
    """That are remembered of each engine; blocks of the engine's own size."""
    drift_window: Count = 32
    """So many comparisons with reported cached tokens are looked at."""
    drift_share: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """With more of them wrong an engine is not believed, until a whole window has fewer."""
    queue: Count = 10_000
    """Messages of an engine that may wait; more are dropped, which is a gap."""
    message_bytes: Count = 16 * 2**20
    replay_timeout: Seconds = 5.0

    @model_validator(mode="after")
    def _replays_belong_to_events(self) -> KvEvents:
        followed = {url.rstrip("/") for url in self.endpoints}
        for url in self.replay:
            if url.rstrip("/") not in followed:
                raise ValueError(f"replay: {url} is not in kv_events.endpoints")
        if self.replay_template is not None and self.template is None:
            raise ValueError("replay_template: there is no kv_events.template")
        return self

    @property
    def wanted(self) -> bool:
        return bool(self.endpoints) or self.template is not None

    def endpoint_of(self, url: str) -> str | None:
        """Where the engine at ``url`` publishes, if it is to be followed."""
        return _named(self.endpoints, url) or _filled(self.template, url)

    def replay_of(self, url: str) -> str | None:
        """Where it answers replays."""
        if _named(self.endpoints, url) is not None:
            return _named(self.replay, url)
        return _filled(self.replay_template, url)


def _named(endpoints: Mapping[str, str], url: str) -> str | None:
    return next((found for name, found in endpoints.items() if name.rstrip("/") == url), None)


def _filled(template: str | None, url: str) -> str | None:
    if template is None:
        return None
    host = urlsplit(url).hostname or ""
    return template.replace(HOST, f"[{host}]" if ":" in host else host)
