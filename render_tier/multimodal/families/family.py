"""How a prompt shows an image, and what of a processed image an engine is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from render_tier.core.vocabulary import Vocabulary
from render_tier.model.files import ModelLoadError
from render_tier.multimodal.item import Arrays, ImageLayout

Encode = Callable[[str], list[int]]
"""Text to IDs, without special tokens put around it."""


@dataclass(frozen=True)
class Replacement:
    """What stands in the prompt for one image or video."""

    ids: tuple[int, ...]
    first: int
    """Where among `ids` the tokens begin that the image's embeddings are put in place of."""
    count: int
    """How many they are, to the last one of them."""
    mask: tuple[bool, ...] | None = None
    """Which of the `count` embeddings are put in place of; None for all."""
    later: tuple[int, ...] = ()
    """Where further runs of `count` begin, each for an item of its own."""
    of_video: bool = False


@dataclass(frozen=True)
class Field:
    """How vLLM lays an array of several images together: "flat" along the first axis, "batched" along a new
    one, "shared" as one for all. What is kept on the CPU is also an item's metadata, which prefill needs
    without the pixels."""

    kind: Literal["flat", "batched", "shared"]
    keep_on_cpu: bool = False
    value: int | None = None
    """What it is whatever the image; without one the processor makes it."""


@dataclass(frozen=True)
class Spelled:
    """What a template writes for an image where the tokenizer has no token for that."""

    ids: tuple[int, ...]
    """Of it as a text of its own."""
    stand_in: str
    """The special token that takes its place in a prompt."""
    stand_in_id: int
    lead: str = ""
    """Text in front of that, which the tokenizer may join with what is before the place."""
    lead_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Family:
    mark: str
    """Stands for an image in a message that reaches the template as one string."""
    token: str
    """What a template writes once for an image."""
    token_id: int
    """Of that, or of what stands in for it."""
    fields: Mapping[str, Field]
    """The arrays that an engine is sent, in vLLM's order."""
    replacement: Callable[[ImageLayout, int, int], Replacement]
    """By what the processor makes of an image, and the image's own width and height."""
    frames: int
    """How often an item holds an image's pixels."""
    engine_normalizes: bool
    """Whether engines take pixels as bytes, to scale and normalize them on the device: by default they do,
    and would do it a second time to pixels that are normalized already."""
    joined: Mapping[tuple[int, int], int]
    """Pairs of tokens that a replacement may bring together, and the one token that the tokenizer has for
    both."""
    in_runs: bool = False
    """Whether the embeddings of one item are in several runs, so that engines need a mask."""
    is_own_format: bool = False
    """Whether engines have the model in Mistral's own format: they take pictures of any size, and prompts
    that have all tokens of them."""
    spelled: Spelled | None = None
    """How `token` is written in several tokens, where it is none of its own."""
    items: Callable[[Arrays], Sequence[Arrays]] = lambda arrays: (arrays,)
    """What the processor makes of an image, as many items as its replacement has runs."""


def required_id(vocabulary: Vocabulary, token: str) -> int:
    found = vocabulary.token_id(token)
    if found is None:
        raise ModelLoadError(f"the tokenizer has no {token!r}, which the model's images need")
    return found
