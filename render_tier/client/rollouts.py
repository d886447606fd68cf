"""Which samples a batch is made of, one request each, so that a retry repeats that sample and no other; and
in which order they begin, so that no group of them waits for another's to end."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

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


@dataclass
class _Group:
    jobs: Iterator[Job]
    next: Job | None
    number: int
    running: int = 0
    begun: int = 0

    @property
    def turn(self) -> tuple[int, int, int]:
        """The lowest one's is next."""
        return self.running, self.begun, self.number


class Batch:
    """``samples`` of each chat request. A request's ``seed`` is counted up, so that samples differ and
    a retry does not.

    ``groups`` names the group of each request. Next is a job of the group that has the fewest under way, and
    of those the one that has begun the fewest; within a group they begin in their order.
    """

    def __init__(
        self, requests: Sequence[Json], samples: int, groups: Sequence[Hashable] | None = None
    ) -> None:
        """Raises ValueError unless each request has a group."""
        if groups is not None and len(groups) != len(requests):
            raise ValueError(f"{len(groups)} groups for {len(requests)} requests")
        members: dict[Hashable, list[int]] = {}
        for prompt in range(len(requests)):
            members.setdefault(groups[prompt] if groups is not None else None, []).append(prompt)
        self._groups: list[_Group] = []
        self._group_of: dict[int, _Group] = {}
        self._waiting: list[tuple[int, int, int]] = []
        """Turns of groups, the lowest first. Some are out of date."""
        for number, prompts in enumerate(members.values()):
            jobs = _jobs(requests, prompts, samples)
            group = _Group(jobs, next(jobs, None), number)
            self._groups.append(group)
            self._group_of.update(dict.fromkeys(prompts, group))
            self._line_up(group)

    def begin(self) -> Job | None:
        """None when every job has begun."""
        while self._waiting:
            turn = heappop(self._waiting)
            group = self._groups[turn[2]]
            if turn != group.turn or group.next is None:
                continue
            job, group.next = group.next, next(group.jobs, None)
            group.running += 1
            group.begun += 1
            self._line_up(group)
            return job
        return None

    def end(self, rollout: Rollout) -> None:
        """Of a job that had begun."""
        group = self._group_of[rollout.prompt]
        group.running -= 1
        self._line_up(group)

    def _line_up(self, group: _Group) -> None:
        if group.next is not None:
            heappush(self._waiting, group.turn)


def _jobs(requests: Sequence[Json], prompts: Sequence[int], samples: int) -> Iterator[Job]:
    for prompt in prompts:
        request = requests[prompt]
        for number in range(samples):
            seed = request.get("seed")
            seeded = {} if seed is None else {"seed": seed + number}
            yield Job(prompt, number, {**request, **seeded, "n": 1})
