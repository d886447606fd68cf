"""What is asked of the hub for a model is all that is read of it."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from render_tier.model.files import HUB_PATTERNS
from render_tier.server.service import Service
from tests.support.render_app import settings_for
from tests.support.tiled_models import lay_out


def settings_digests(directory: Path) -> tuple[bytes, bytes]:
    """Of what becomes of images, and of videos."""
    images = Service.load(settings_for(directory)).images
    assert images is not None
    assert images.vision.videos is not None
    return images.vision.preparation.processor.settings_digest, images.vision.videos.settings_digest


def test_a_snapshot_makes_of_images_and_videos_what_the_whole_repository_does(
    tmp_path: Path, model_dir: Callable[[str], Path]
) -> None:
    whole = lay_out("internvl_small", model_dir("qwen3").parent, tmp_path / "whole")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in whole.iterdir():
        if any(fnmatch(file.name, pattern) for pattern in HUB_PATTERNS):
            (snapshot / file.name).write_bytes(file.read_bytes())
    assert settings_digests(snapshot) == settings_digests(whole)
