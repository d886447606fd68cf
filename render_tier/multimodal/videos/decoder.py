"""The program that reads videos' files with OpenCV, one after the other: a process of its own, which may be
ended whatever a file makes the decoders do.

A request on its standard input is a line of JSON, `{"size": bytes, "indices": [...] or null}`, and a file of
that size. Without indices the answer is a line of JSON about the file. With indices it is their frames that
can be read, each a byte 1 and its RGB pixels, then a byte 0 and a line of JSON with the indices of those. A
line `{"error": ...}` may be in place of the other ones. Frames are found and read as vLLM's loader does it.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from io import BytesIO
from typing import Any, BinaryIO

import cv2
import cv2.videoio_registry

STREAMS = 3
"""Standard input, output and error: the files that this program has."""


class Unreadable(ValueError):
    pass


def main(cpu_seconds: float, memory_bytes: int) -> None:
    """``cpu_seconds``: for each request; a process that nobody waits for any more ends then, too."""
    reader = _reader()
    _limit(memory_bytes)
    cv2.setNumThreads(1)
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    while line := given.readline():
        _limit_cpu(cpu_seconds)
        asked = json.loads(line)
        data = given.read(asked["size"])
        try:
            # Not released: OpenCV drops the file while Python's lock is not held, and crashes.
            capture = _opened(data, reader)
            if asked["indices"] is None:
                _say(answers, _about(capture))
            else:
                _send(answers, capture, asked["indices"])
            del capture
        except Unreadable as error:
            if asked["indices"] is not None:
                answers.write(b"\0")
            _say(answers, {"error": str(error)})


def _reader() -> int | None:
    """Found before the limits are set, as it may be in a library of its own."""
    registry = cv2.videoio_registry
    return next(filter(registry.hasBackend, registry.getStreamBufferedBackends()), None)


def _limit(memory_bytes: int) -> None:
    """Nor can a file or a socket be opened any more: formats name further files and addresses."""
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, STREAMS),
    ):
        resource.setrlimit(what, (most, most))


def _limit_cpu(seconds: float) -> None:
    """From now on, in whole seconds, as the system counts."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _say(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _opened(data: bytes, reader: int | None) -> Any:
    if reader is None:
        raise Unreadable("OpenCV has nothing here that reads videos from memory")
    try:
        capture: Any = cv2.VideoCapture(BytesIO(data), reader, [])  # type: ignore[call-overload]
    except cv2.error:
        raise Unreadable("not a readable video") from None
    if not capture.isOpened():
        raise Unreadable("not a readable video")
    return capture


def _about(capture: Any) -> dict[str, Any]:
    total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    # The header counts frames that an edit list hides, the position at the end does not.
    if total > 0 and capture.set(cv2.CAP_PROP_POS_AVI_RATIO, 1.0):
        shown = int(capture.get(cv2.CAP_PROP_POS_FRAMES))
        at_the_end = not capture.grab()
        capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
        if at_the_end and 0 < shown < total - 1:
            total = shown
    return {
        "width": int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)),
        "height": int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)),
        "total": total,
        "rate": capture.get(cv2.CAP_PROP_FPS),
    }


def _send(answers: BinaryIO, capture: Any, indices: list[int]) -> None:
    about = _about(capture)
    wanted = set(indices)
    sent: list[int] = []
    for index in range(max(wanted) + 1):
        if not capture.grab() or index not in wanted:
            continue
        read, frame = capture.retrieve()
        if not read:
            continue
        if frame.shape != (about["height"], about["width"], 3):
            raise Unreadable("a frame of the video has another size than its header says")
        answers.write(b"\1")
        answers.write(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).data)
        sent.append(index)
    answers.write(b"\0")
    _say(answers, {"sent": sent})


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
