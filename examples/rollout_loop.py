"""Multi-turn rollouts for a trainer that takes token IDs (TRL's `rollout_func`, verifiers' environments).

    python examples/rollout_loop.py http://localhost:8080 "What is 2+3?" "What is 4+4?"

TRL calls ``rollout_func(prompts, trainer)`` and reads ``prompt_ids``, ``completion_ids`` and ``logprobs``,
lists with an entry for each prompt; what else is returned goes to the reward functions. Here every prompt is
a conversation of several turns. Each turn's prompt begins with the IDs of the turn before (`continuation`),
so what the trainer computes its loss on is what the model has seen and sampled. ``mask`` is 1 where the
model wrote, 0 where the environment did.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from render_tier.client import Client, Sample

Message = dict[str, Any]
Environment = Callable[[list[Message]], Message | None]
"""What comes after an answer (a tool's result, the user's next words); None at the end."""


@dataclass
class Trajectory:
    """One conversation as a trainer takes it. ``completion_ids`` is everything behind the first prompt."""

    messages: list[Message]
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Raises ValueError when the prompt does not go on from what is here, or logprobs are missing."""
        if sample.logprobs is None:
            raise ValueError("there is not a logprob for each token")
        seen = self.prompt_ids + self.completion_ids
        if sample.prompt_token_ids[: len(seen)] != seen:
            raise ValueError("the prompt does not begin with the turn before")
        new = sample.prompt_token_ids[len(seen) :]
        if seen:
            self.completion_ids += new
            self.mask += [0] * len(new)
            self.logprobs += [0.0] * len(new)
        else:
            self.prompt_ids = new
        self.completion_ids += sample.output_token_ids
        self.mask += [1] * len(sample.output_token_ids)
        self.logprobs += sample.logprobs
        self.messages.append(sample.message or {})


def rollout_func(
    client: Client, environment: Environment, *, max_turns: int, **sampling: Any
) -> Callable[..., dict[str, list[Any]]]:
    """A function with TRL's signature. ``sampling``: fields of the chat requests (``temperature``, ...)."""

    def rollout(prompts: Sequence[str | list[Message]], trainer: Any = None) -> dict[str, list[Any]]:
        open_: dict[int, Trajectory] = {
            i: Trajectory([{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt])
            for i, prompt in enumerate(prompts)
        }
        all_ = dict(open_)
        before: dict[int, Sample] = {}
        for _ in range(max_turns):
            order = list(open_)
            requests = []
            for i in order:
                request = {**sampling, "messages": open_[i].messages, "logprobs": True}
                if i in before:
                    request |= {"continuation": before[i].continuation, "continuation_strict": True}
                requests.append(request)
            for result in client.rollouts(requests):
                i = order[result.prompt]
                if result.sample is None:  # refused: this conversation ends here, whole as far as it goes
                    del open_[i]
                    continue
                open_[i].add(result.sample)
                before[i] = result.sample
                said = environment(open_[i].messages)
                if said is None:
                    del open_[i]
                else:
                    open_[i].messages.append(said)
            if not open_:
                break
        trajectories = list(all_.values())
        return {
            "prompt_ids": [t.prompt_ids for t in trajectories],
            "completion_ids": [t.completion_ids for t in trajectories],
            "logprobs": [t.logprobs for t in trajectories],
            "mask": [t.mask for t in trajectories],
            "messages": [t.messages for t in trajectories],
        }

    return rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", help="the orchestrator")
    parser.add_argument("prompts", nargs="+")
    arguments = parser.parse_args()

    def asks_once_more(messages: list[Message]) -> Message | None:
        return {"role": "user", "content": "Are you sure?"} if len(messages) < 4 else None

    with Client(arguments.url) as client:
        rollout = rollout_func(client, asks_once_more, max_turns=2, temperature=1.0, max_tokens=64)
        batch = rollout(arguments.prompts)
    for prompt, completion, mask in zip(
        batch["prompt_ids"], batch["completion_ids"], batch["mask"], strict=True
    ):
        print(
            f"{len(prompt)} prompt tokens, {len(completion)} after them, of which {sum(mask)} are the model's"
        )


if __name__ == "__main__":
    main()
