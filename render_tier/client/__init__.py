"""Client of the orchestrator and the render tier, for programs that need exact tokens: RL rollouts and evals.

`Client` blocks, `AsyncClient` does not; both give the same records (`records`). See docs/client.md.
"""

from render_tier.client.asynchronous import AsyncClient
from render_tier.client.errors import ClientError, Refused, Unreachable, Unreadable
from render_tier.client.records import Chat, Prompt, Rollout, Sample
from render_tier.client.retries import Retries
from render_tier.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "Chat",
    "Client",
    "ClientError",
    "Prompt",
    "Refused",
    "Retries",
    "Rollout",
    "Sample",
    "Unreachable",
    "Unreadable",
]
