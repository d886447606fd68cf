"""Files of videos: read by a process of its own, whatever they do to it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pytest

from render_tier.multimodal.decoding import ImageTooLarge, UnreadableImage
from render_tier.multimodal.videos.decoder_process import DecoderPool
from render_tier.multimodal.videos.files import VideoFile
from render_tier.multimodal.videos.opened import FramesMissing
from render_tier.multimodal.videos.sampling import Rule, Sampling
from render_tier.protocol.errors import Unavailable
from tests.support.video_corpus import FILES

GIB = 1 << 30
SESSION = (
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 50040 RTP/AVP 96\n"
    b"a=rtpmap:96 H264/90000\n"
)
"""Of SDP: which port a video is to be received at."""


@pytest.fixture
def decoders() -> Iterator[DecoderPool]:
    pool = DecoderPool(seconds=60, memory_bytes=4 * GIB)
    yield pool
    pool.close()


def opened(
    decoders: DecoderPool,
    data: bytes | str,
    rule: Rule = "from the start",
    *,
    of_frame: int = 1 << 20,
    of_video: int = 1 << 24,
) -> VideoFile:
    content = (FILES / data).read_bytes() if isinstance(data, str) else data
    return VideoFile(content, Sampling(rule), decoders, max_frame_pixels=of_frame, max_pixels=of_video)


def readers() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "videos.decoder" in " ".join(child.cmdline())
    ]


def test_frames_of_a_file_are_read(decoders: DecoderPool) -> None:
    video = opened(decoders, "clip.mp4")
    assert video.size == (96, 64)
    assert (video.planned.total, video.planned.rate, video.planned.duration) == (40, 10.0, 4.0)
    assert video.planned.indices == (0, 5, 10, 15, 20, 25, 30, 35)
    frames = [frame.copy() for frame in video.frames(video.planned)]
    assert {frame.shape for frame in frames} == {(64, 96, 3)}
    # The film's red, in RGB, grows by 11 a frame.
    assert not np.array_equal(frames[0], frames[1])
    assert frames[0][0, 0, 0] < 30
    assert len(readers()) == 1, "one process reads one file after the other"


def test_all_frames_of_a_short_file_are_taken(decoders: DecoderPool) -> None:
    planned = opened(decoders, "short.mp4", "to the end").planned
    assert (planned.indices, planned.sampled_again) == ((0, 1, 2), True)
    assert opened(decoders, "short.mp4", "from the start").planned.indices == (0, 1)


def test_frames_that_an_edit_list_hides_are_not_counted(decoders: DecoderPool) -> None:
    assert opened(decoders, "trimmed.mp4").planned.total == 27


def test_file_that_is_cut_off_has_fewer_frames(decoders: DecoderPool) -> None:
    video = opened(decoders, "cut.mp4")
    with pytest.raises(FramesMissing) as missing:
        list(video.frames(video.planned))
    facts = missing.value.facts
    assert len(facts.indices) == 5
    assert set(facts.indices) < set(video.planned.indices)
    assert len(list(video.frames(facts))) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a video of a known format"),
        (b"#EXTM3U\nfile:secret\n", "not a video of a known format"),
        (b"ffconcat version 1.0\nfile secret\n", "not a video of a known format"),
        (b"\0\0\0\x18ftypisom" + bytes(100), "not a readable video"),
        (b"\x1aE\xdf\xa3" + bytes(range(256)), "not a readable video"),
        (b"\x1aE\xdf\xa3ABC\n" + SESSION, "not a readable video"),
        ("cut-header.mp4", "not a readable video"),
    ],
)
def test_what_is_no_video(decoders: DecoderPool, data: bytes | str, message: str) -> None:
    with pytest.raises(UnreadableImage, match=message):
        opened(decoders, data)
    assert opened(decoders, "short.mp4").size == (64, 48)


def faulty(name: str, seed: int) -> bytes:
    """A file with some bytes changed, put in or cut off, but for its first ones."""
    choose, data = Random(seed), bytearray((FILES / name).read_bytes())
    place = choose.randrange(12, len(data))
    fault = choose.choice(["changed", "put in", "cut off"])
    if fault == "cut off":
        del data[place:]
    elif fault == "put in":
        data[place:place] = choose.randbytes(choose.randint(1, 400))
    else:
        for _ in range(choose.randint(1, 30)):
            data[choose.randrange(12, len(data))] = choose.choice([0, 127, 255, choose.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("name", ["clip.mp4", "h264.mp4", "clip.webm", "test.mkv", "clip.avi"])
def test_files_with_faults_have_frames_or_are_refused(decoders: DecoderPool, name: str) -> None:
    for seed in range(20):
        try:
            video = opened(decoders, faulty(name, seed), "to the end")
            frames = [frame.shape for frame in video.frames(video.planned)]
        except (UnreadableImage, ImageTooLarge, FramesMissing):
            continue
        assert frames == [(*reversed(video.size), 3)] * len(video.planned.indices), seed


def test_bounds_on_pixels_count_before_a_frame_is_read(decoders: DecoderPool) -> None:
    with pytest.raises(ImageTooLarge, match="frames have 96x64 pixels; at most 6143 are allowed"):
        opened(decoders, "clip.mp4", of_frame=6143)
    with pytest.raises(ImageTooLarge, match=r"8 frames of 96x64 pixels .* at most 49151 pixels"):
        opened(decoders, "clip.mp4", "to the end", of_video=49151)


def test_reader_that_takes_too_long_is_ended() -> None:
    pool = DecoderPool(seconds=1e-6, memory_bytes=4 * GIB)
    with pytest.raises(UnreadableImage, match="takes longer than 1e-06 seconds"):
        opened(pool, "short.mp4")
    assert readers() == []


def test_reader_that_a_file_ends(decoders: DecoderPool) -> None:
    video = opened(decoders, "clip.mp4")
    (reader,) = readers()
    assert reader.rlimit(psutil.RLIMIT_AS) == (4 * GIB, 4 * GIB)
    frames = video.frames(video.planned)
    next(frames)  # there are more than fit into the pipe
    reader.kill()
    with pytest.raises(UnreadableImage, match="the program that does so ended at it"):
        list(frames)
    assert len(list(video.frames(video.planned))) == 8


def test_reader_that_ends_between_two_videos_is_no_fault_of_the_next(decoders: DecoderPool) -> None:
    """As one does that the system takes the memory of."""
    opened(decoders, "short.mp4")
    (reader,) = readers()
    reader.kill()
    reader.wait()
    assert opened(decoders, "short.mp4").size == (64, 48)
    assert len(readers()) == 1


def test_reader_is_ended_when_frames_are_not_wanted_any_more(decoders: DecoderPool) -> None:
    video = opened(decoders, "clip.mp4")
    frames = video.frames(video.planned)
    next(frames)
    frames.close()
    assert readers() == []
    assert len(list(video.frames(video.planned))) == 8


def test_reader_has_no_secret_of_this_process(decoders: DecoderPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDER_TIER_API_KEY", "secret")
    opened(decoders, "short.mp4")
    (reader,) = readers()
    assert "RENDER_TIER_API_KEY" not in reader.environ()


def test_reader_has_as_much_cpu_for_each_video(decoders: DecoderPool) -> None:
    """Whoever it reads for: one whose server was killed does not spin for ever."""
    opened(decoders, "short.mp4")
    (reader,) = readers()
    used = sum(reader.cpu_times()[:2])
    soft, _hard = reader.rlimit(psutil.RLIMIT_CPU)
    assert 120 <= soft <= 120 + used + 2
    reader.rlimit(psutil.RLIMIT_CPU, (soft - 60, _hard))
    opened(decoders, "short.mp4")
    assert reader.rlimit(psutil.RLIMIT_CPU)[0] >= soft


def test_reader_takes_no_module_of_the_working_directory(
    decoders: DecoderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cv2.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert opened(decoders, "short.mp4").size == (64, 48)


def test_reader_in_use_ends_after_its_pool_is_closed(decoders: DecoderPool) -> None:
    video = opened(decoders, "clip.mp4")
    frames = video.frames(video.planned)
    next(frames)
    decoders.close()
    assert len(list(frames)) == 7
    assert readers() == []


def test_no_process_for_a_reader_is_an_overload(decoders: DecoderPool) -> None:
    """Where there may be no more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(Unavailable, match="no process can be begun to read a video: Too many open files"):
            opened(decoders, b"\0\0\0\x18ftypmp42")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert opened(decoders, "short.mp4").size == (64, 48)


def test_reader_can_open_neither_files_nor_sockets(decoders: DecoderPool) -> None:
    opened(decoders, "short.mp4")
    (reader,) = readers()
    assert reader.rlimit(psutil.RLIMIT_NOFILE) == (3, 3)
    assert reader.net_connections() == []
