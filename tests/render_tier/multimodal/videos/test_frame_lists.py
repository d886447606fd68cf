"""Lists of frames: how many are taken, and what is refused with the frame's number."""

from __future__ import annotations

import pytest

from render_tier.multimodal.decoding import ImageTooLarge, UnreadableImage
from render_tier.multimodal.videos.frame_lists import FrameList
from render_tier.multimodal.videos.sampling import Sampling
from tests.support.images import file, picture, turned
from tests.support.video_corpus import film, frames_url

SAMPLING = Sampling("from the start")


def opened(*frames: bytes, of_frame: int = 10_000, of_video: int = 100_000) -> FrameList:
    listed = frames_url(frames).partition(",")[2].encode()
    return FrameList(listed, SAMPLING, max_frame_pixels=of_frame, max_pixels=of_video)


def test_the_first_32_frames_are_taken_a_second_apart() -> None:
    video = opened(*(file(frame) for frame in film(40, 8, 6)))
    assert video.size == (8, 6)
    assert video.planned.indices == tuple(range(32))
    assert (video.planned.total, video.planned.taken_rate, video.planned.duration) == (32, 1.0, 32.0)
    assert [frame.shape for frame in video.frames(video.planned)] == [(6, 8, 3)] * 32


def test_frames_are_turned_as_their_files_say() -> None:
    assert opened(turned(6)).size == (20, 40)


PNG = file(picture(20, 10))


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (b"", "frame 0: not a readable image"),
        (b"iVBORw0KGgo=", "frame 0: not a readable image"),
        (b"%%%", "frame 0: not base64"),
        (frames_url([PNG]).partition(",")[2].encode() + b",,", "frame 1: not a readable image"),
    ],
)
def test_what_is_no_image_is_named(listed: bytes, message: str) -> None:
    with pytest.raises(UnreadableImage, match=message):
        FrameList(listed, SAMPLING, max_frame_pixels=1000, max_pixels=1000)


def test_frames_of_several_sizes() -> None:
    with pytest.raises(UnreadableImage, match="frame 1 has 20x11 pixels, the first one 20x10"):
        opened(PNG, file(picture(20, 11)))


def test_frame_that_is_cut_off() -> None:
    whole = file(picture(90, 90), "JPEG")
    video = opened(whole, whole[: len(whole) // 2])
    with pytest.raises(UnreadableImage, match="frame 1: not a readable image"):
        list(video.frames(video.planned))


def test_bounds_on_pixels_count_before_anything_is_decoded() -> None:
    with pytest.raises(ImageTooLarge, match=r"frame 0: .*20x10.*at most 199 are allowed"):
        opened(PNG, of_frame=199)
    with pytest.raises(ImageTooLarge, match=r"3 frames of 20x10 pixels .* at most 599 pixels are allowed"):
        opened(PNG, PNG, PNG, of_video=599)
