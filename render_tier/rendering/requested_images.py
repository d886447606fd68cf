"""The images that a request is rendered with, before any of them is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from render_tier.rendering.image_parts import ImagePart

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.prepared import ImagePreparation
    from render_tier.multimodal.videos.prepared import VideoPreparation


@dataclass(frozen=True)
class RequestedImages:
    parts: list[ImagePart]
    """At least one."""
    preparation: ImagePreparation
    """What they are read and processed with."""
    videos: VideoPreparation | None
    """What videos are; None where none are taken."""
    salt: str | None
    """Of the request's caches: what it says apart of other requests' images."""
    check_fits: Callable[[int], None]
    """Raises BadRequest for so many tokens or more, if no prompt may have them."""
