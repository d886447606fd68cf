"""Videos that clients send, of which it is recorded what vLLM makes of them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tests.support.images import data_url, file, picture

DATA = Path(__file__).resolve().parents[1] / "conformance" / "data"
RECORDED = DATA / "videos.json"
PROCESSED = DATA / "processed_videos.json"
FILES = DATA / "videos"
"""Films of up to 400 frames: MPEG-4, H.264 (also turned by its header, and with frames that an edit list
hides), Motion JPEG and VP9, in MP4, Matroska, WebM and AVI; and cut off."""
Json = dict[str, Any]


def frames_url(frames: Sequence[Image.Image | bytes]) -> str:
    """Frames as a list of images' files."""
    files = [frame if isinstance(frame, bytes) else file(frame, "JPEG") for frame in frames]
    return "data:video/jpeg;base64," + ",".join(b64encode(each).decode() for each in files)


def file_url(name: str) -> str:
    return data_url((FILES / name).read_bytes(), "video/mp4")


def film(frames: int, width: int, height: int, seed: int = 0) -> list[Image.Image]:
    return [picture(width, height, seed=seed * 1000 + number) for number in range(frames)]


def part(url: str, **fields: Any) -> Json:
    return {"type": "video_url", "video_url": {"url": url}, **fields}


def image_part(width: int, height: int) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(file(picture(width, height)))}}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def contents() -> Mapping[str, list[Json]]:
    """By name, the parts of a message."""
    small = frames_url(film(4, 64, 48))
    return {
        "small": [part(small)],
        "odd number of frames": [text("See"), part(frames_url(film(5, 90, 60, seed=1))), text("What is it?")],
        "two frames": [part(frames_url(film(2, 30, 200)))],
        "larger": [part(frames_url(film(6, 640, 360, seed=2))), text("So?")],
        "as long as may be": [part(frames_url(film(32, 40, 40, seed=3)))],
        "longer": [part(frames_url(film(35, 40, 40, seed=3)))],
        "of several kinds": [
            part(
                frames_url(
                    [
                        file(picture(64, 48, "L"), "JPEG"),
                        file(picture(64, 48, "RGBA")),
                        file(picture(64, 48, "CMYK"), "JPEG"),
                        file(picture(64, 48)),
                    ]
                )
            )
        ],
        "two videos": [part(small), text("and"), part(frames_url(film(3, 50, 70, seed=4)))],
        "the same twice": [part(small), part(small)],
        "beside images": [image_part(60, 40), text("a"), part(small), text("b"), image_part(200, 100)],
        "frames smaller than their files": [part(frames_url(film(4, 3, 2, seed=6)))],
        **{f"file {each.name}": [text("See"), part(file_url(each.name))] for each in sorted(FILES.iterdir())},
        "a file and frames": [part(file_url("h264.mp4")), text("or"), part(small)],
        "named": [part(small, uuid="mine"), part(small)],
    }


OPTIONS: Mapping[str, Json] = {
    "fewer frames": {"num_frames": 3},
    "more frames": {"num_frames": 40},
    "slower": {"fps": 0.5},
    "faster": {"fps": 5, "num_frames": 7},
    "as fast as the file": {"fps": 10.0},
}
"""`media_io_kwargs` of videos."""


def optional_contents() -> Mapping[str, list[Json]]:
    """What is read with each of `OPTIONS`."""
    return {
        "a list": [part(frames_url(film(6, 40, 30, seed=8)))],
        "a long list": [part(frames_url(film(45, 10, 20, seed=9)))],
        "a file": [part(file_url("clip.mp4")), text("?")],
        "a short file": [part(file_url("clip.avi"))],
        "a long file": [part(file_url("long.mp4"))],
        "a name": [part(file_url("short.mp4"), uuid="mine")],
    }


PROCESSING: Mapping[str, Mapping[str, Json]] = {
    "qwen": {
        "fewer pixels": {"max_pixels": 6272},
        "more pixels": {"min_pixels": 200704},
        "from, to": {"min_pixels": 3136, "max_pixels": 12544},
        "size": {"size": {"shortest_edge": 3136, "longest_edge": 12544}},
        "of videos": {"videos_kwargs": {"min_pixels": 3136, "max_pixels": 12544}},
        "of images": {"images_kwargs": {"min_pixels": 3136, "max_pixels": 12544}},
        "of images and of videos": {
            "images_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 6272}},
            "videos_kwargs": {"size": {"shortest_edge": 3136, "longest_edge": 25088}},
        },
    },
    "internvl_small": {
        "without tiles": {"crop_to_patches": False},
        "from, to": {"min_patches": 2, "max_patches": 4},
        "of images": {"images_kwargs": {"max_patches": 2}},
        "of videos": {"videos_kwargs": {}},
    },
}
"""`mm_processor_kwargs`, by what the names of models begin with."""


def processed_contents() -> Mapping[str, list[Json]]:
    """What is processed with each of `PROCESSING`."""
    return {
        "a video": [part(frames_url(film(4, 200, 100, seed=5)))],
        "beside an image": [image_part(200, 150), text("and"), part(file_url("clip.mp4"))],
        "a name": [part(file_url("short.mp4"), uuid="theirs")],
    }


def chats() -> Mapping[str, tuple[list[Json], Json]]:
    """By name, the parts of a message, and how a request says that its media are read."""
    optional = {
        f"{title}, {how}": (content, {"media_io_kwargs": {"video": option}})
        for title, content in optional_contents().items()
        for how, option in OPTIONS.items()
    }
    return {title: (content, {}) for title, content in contents().items()} | optional


def processed_chats(model: str) -> Mapping[str, tuple[list[Json], Json]]:
    """As `chats`, with how its media are processed."""
    (options,) = (each for name, each in PROCESSING.items() if model.startswith(name))
    processed = {
        f"{title}, {how}": (content, {"mm_processor_kwargs": option})
        for title, content in processed_contents().items()
        for how, option in options.items()
    }
    both = {
        "beside an image, read and processed": (
            processed_contents()["beside an image"],
            {
                "media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}, "video": {"fps": 5}},
                "mm_processor_kwargs": options["from, to"],
            },
        )
    }
    return processed | both
