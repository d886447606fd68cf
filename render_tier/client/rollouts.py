"""Which samples a batch is made of: one request each, so that a retry repeats that sample and no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from render_tier.client.errors import ClientError
from render_tier.client.records import Chat, Rollout
from render_tier.client.wire import Json


@dataclass(frozen=True)
class Job:
    prompt: int
    number: int
    request: Json

    def done(self, chat: Chat, attempts: int) -> Rollout:
        return Rollout(
            prompt=self.prompt, number=self.number, sample=chat.samples[0], error=None, attempts=attempts
        )

    def failed(self, error: ClientError, attempts: int) -> Rollout:
        return Rollout(
            prompt=self.prompt, number=self.number, sample=None, error=str(error), attempts=attempts
        )


def jobs(requests: Sequence[Json], samples: int) -> Iterator[Job]:
    """``samples`` of each chat request. A request's ``seed`` is counted up, so that samples differ and
    a retry does not."""
    for prompt, request in enumerate(requests):
        for number in range(samples):
            seed = request.get("seed")
            seeded = {} if seed is None else {"seed": seed + number}
            yield Job(prompt, number, {**request, **seeded, "n": 1})
