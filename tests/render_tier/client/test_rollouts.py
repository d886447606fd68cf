"""The order in which the samples of a batch begin."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from render_tier.client.records import Rollout
from render_tier.client.rollouts import Batch, Job


def over(job: Job) -> Rollout:
    return Rollout(prompt=job.prompt, number=job.number, sample=None, error="", attempts=1)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(0, 3), st.integers(1, 6), st.data())
def test_every_sample_begins_once_and_next_comes_who_has_the_fewest_under_way(
    groups: list[str], samples: int, concurrency: int, data: st.DataObject
) -> None:
    requests: list[dict[str, Any]] = [{"seed": 100 * i} for i in range(len(groups))]
    batch = Batch(requests, samples, groups)
    left = Counter(groups)
    for group in left:
        left[group] *= samples
    running: list[Job] = []
    begun: list[Job] = []
    while True:
        if len(running) < concurrency and (job := batch.begin()) is not None:
            under_way = Counter(groups[each.prompt] for each in running)
            mine = groups[job.prompt]
            assert all(under_way[mine] <= under_way[group] for group in left if left[group])
            left[mine] -= 1
            running.append(job)
            begun.append(job)
        elif running:
            batch.end(over(running.pop(data.draw(st.integers(0, len(running) - 1)))))
        else:
            break
    assert not +left
    assert Counter((job.prompt, job.number) for job in begun) == Counter(
        {(prompt, number): 1 for prompt in range(len(groups)) for number in range(samples)}
    )
    assert all(job.request == {"seed": 100 * job.prompt + job.number, "n": 1} for job in begun)


def test_without_groups_they_begin_in_their_order() -> None:
    batch = Batch([{}] * 3, 2)
    begun = [(job.prompt, job.number) for job in iter(batch.begin, None)]
    assert begun == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_as_many_groups_as_prompts_take_turns() -> None:
    count = 20_000
    batch = Batch([{}] * count, 2, range(count))
    first = [batch.begin() for _ in range(count)]
    assert [job.number for job in first if job is not None] == [0] * count
