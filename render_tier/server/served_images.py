"""Where images and videos may come from: read of the settings once, before a process serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from render_tier.model import ModelLoadError
from render_tier.multimodal.addresses import networks
from render_tier.multimodal.remote import RemoteRules
from render_tier.multimodal.silent_decoders import silence_decoders
from render_tier.multimodal.sources import SourceRules
from render_tier.multimodal.vision import Vision
from render_tier.rendering.image_parts import Kind
from render_tier.settings import Settings


@dataclass(frozen=True)
class ServedImages:
    vision: Vision
    local: Mapping[Kind, SourceRules]
    remote: Mapping[Kind, RemoteRules]


def served_images(vision: Vision, settings: Settings) -> ServedImages:
    """Raises ModelLoadError for a setting that names what there is not."""
    silence_decoders()
    local, remote = _local_rules(settings), _remote_rules(settings)
    local_videos = replace(local, what="video", max_bytes=settings.max_video_bytes)
    remote_videos = replace(
        remote, what="video", max_bytes=settings.max_video_bytes, seconds=settings.video_fetch_seconds
    )
    return ServedImages(
        vision, {"image": local, "video": local_videos}, {"image": remote, "video": remote_videos}
    )


def _local_rules(settings: Settings) -> SourceRules:
    directory = None
    if settings.allowed_local_media_path:
        directory = Path(settings.allowed_local_media_path).resolve()
        if not directory.is_dir():
            raise ModelLoadError(f"--allowed-local-media-path: {directory} is not a directory")
    return SourceRules(settings.max_image_bytes, directory)


def _remote_rules(settings: Settings) -> RemoteRules:
    try:
        allowed = networks(settings.allowed_media_networks)
    except ValueError as error:
        raise ModelLoadError(f"--allowed-media-networks: {error}") from None
    return RemoteRules(
        max_bytes=settings.max_image_bytes,
        seconds=settings.image_fetch_seconds,
        max_redirects=settings.max_image_redirects,
        domains=frozenset(settings.allowed_media_domains),
        networks=allowed,
    )
