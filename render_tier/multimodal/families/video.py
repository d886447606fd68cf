"""How a prompt shows a video, and what of a processed video an engine is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from render_tier.multimodal.families.family import Field, Replacement, Spelled
from render_tier.multimodal.item import Arrays


@dataclass(frozen=True)
class VideoPlaces:
    """What of a video decides on its tokens."""

    groups: int
    """Of frames that are shown as one picture in time."""
    height: int
    """Pixels of a frame that the model is shown."""
    width: int
    times: Sequence[float]
    """Seconds from the video's start to the middle of each group; none where a file does not say how many
    frames a second it has, which some models need not know."""


@dataclass(frozen=True)
class VideoForm:
    mark: str
    """Stands for a video in a message that reaches the template as one string."""
    token: str
    """What a template writes once for a video."""
    token_id: int
    modality: Literal["image", "video"]
    """What engines are told that its items are: one video, or an image of each group, with a run of tokens of
    its own."""
    sampling: Literal["from the start", "to the end", "evenly"]
    """How vLLM chooses the frames of a file."""
    fields: Mapping[str, Field]
    """The arrays that an engine is sent of an item, in vLLM's order."""
    replacement: Callable[[VideoPlaces], Replacement]
    spelled: Spelled | None = None
    """As of `Family`."""
    items: Callable[[Arrays], Sequence[Arrays]] = lambda arrays: (arrays,)
    """What the processor makes of a video, as many items as its replacement has runs."""
    positions_a_second: float = 0.0
    """By how many an engine moves on in positions; 0 where groups are counted, whatever the time between
    them."""
