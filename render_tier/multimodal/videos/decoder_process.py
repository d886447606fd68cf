"""Processes that decode videos (`decoder.py`): each for one file at a time, bounded in memory and in time,
and ended for any fault."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from render_tier.multimodal.decoding import UnreadableImage
from render_tier.multimodal.videos.opened import Frame
from render_tier.protocol.errors import Unavailable

LONGEST_LINE = 1 << 16
CPU_FOR_WAITING = 2
"""Seconds of a process's CPU for each that a call may wait for it: it also works while a frame that it gave
is looked at."""
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables that a process has of this one's: no secret is among them."""
SET = {
    "OPENCV_LOG_LEVEL": "OFF",
    "OPENCV_FFMPEG_LOGLEVEL": "-8",
    "OPENCV_FFMPEG_CAPTURE_OPTIONS": "threads;1|format_whitelist;mov,matroska,avi",
}
"""Formats are guessed by more than a file's first bytes: without the list, one of what begins as Matroska and
goes on as SDP would be SDP, for which sockets are opened."""


class DecoderPool:
    """As many processes as are in use at once. Thread-safe."""

    def __init__(self, *, seconds: float, memory_bytes: int) -> None:
        """``seconds``: that one call may wait for a process. ``memory_bytes``: of a process."""
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._idle: list[_Decoder] = []
        self._closed = False
        self._lock = threading.Lock()

    def about(self, data: bytes) -> dict[str, Any]:
        """Width, height, number and rate of frames. Raises UnreadableImage and Unavailable."""
        with self._decoder() as decoder:
            decoder.ask(data, None)
            return decoder.line()

    def frames(
        self, data: bytes, indices: Sequence[int], width: int, height: int
    ) -> Generator[Frame, None, list[int]]:
        """The frames of ``indices`` that can be read, each until the next one is asked for. Returns the
        indices of those. Raises UnreadableImage and Unavailable."""
        with self._decoder() as decoder:
            decoder.ask(data, indices)
            frame = np.empty((height, width, 3), np.uint8)
            count = 0
            while decoder.has_more() and count < len(indices):
                decoder.read_into(frame.reshape(-1).data)
                count += 1
                yield frame
            sent = set(decoder.line()["sent"])
            read = [index for index in indices if index in sent]
            if len(read) != count:
                raise EOFError
            return read

    def close(self) -> None:
        """Those that are in use end when they are not any more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for decoder in idle:
            decoder.end()

    @contextmanager
    def _decoder(self) -> Iterator[_Decoder]:
        decoder = self._living() or self._begun()
        decoder.seconds = self._seconds
        try:
            yield decoder
        except _Refused as refused:
            self._put_back(decoder)
            raise UnreadableImage(str(refused)) from None
        except Exception as fault:
            decoder.end()
            if isinstance(fault, TimeoutError):
                raise UnreadableImage(
                    f"reading the video takes longer than {self._seconds:g} seconds"
                ) from None
            raise UnreadableImage("the video cannot be read: the program that does so ended at it") from None
        except BaseException:  # frames that were not all asked for
            decoder.end()
            raise
        else:
            self._put_back(decoder)

    def _living(self) -> _Decoder | None:
        """An idle one; those that have ended by themselves are no fault of the next file."""
        while True:
            with self._lock:
                decoder = self._idle.pop() if self._idle else None
            if decoder is None or decoder.lives:
                return decoder
            decoder.end()

    def _begun(self) -> _Decoder:
        try:
            return _Decoder(self._seconds, self._memory_bytes)
        except OSError as error:  # as many processes or open files as there may be
            raise Unavailable(f"no process can be begun to read a video: {error.strerror}") from error

    def _put_back(self, decoder: _Decoder) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(decoder)
                return
        decoder.end()


class _Refused(Exception):
    """What the program says of a file."""


class _Decoder:
    def __init__(self, seconds: float, memory_bytes: int) -> None:
        """Raises OSError."""
        bounds = str(CPU_FOR_WAITING * seconds), str(memory_bytes)
        self._process = subprocess.Popen(
            # Without what is in the working directory, whose modules may be anybody's.
            [sys.executable, "-P", "-m", "render_tier.multimodal.videos.decoder", *bounds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**{name: os.environ[name] for name in KEPT if name in os.environ}, **SET},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._requests, self._answers):
            os.set_blocking(pipe, False)
        self.seconds = 0.0
        """Left to wait for it."""

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes, indices: Sequence[int] | None) -> None:
        """Raises TimeoutError and OSError."""
        asked = {"size": len(data), "indices": None if indices is None else list(indices)}
        self._write(memoryview(json.dumps(asked).encode() + b"\n"))
        self._write(memoryview(data))

    def _write(self, data: memoryview) -> None:
        while data:
            self._wait(writing=True)
            data = data[os.write(self._requests, data) :]

    def read_into(self, target: memoryview) -> None:
        """Raises TimeoutError, OSError and EOFError."""
        while target:
            self._wait(writing=False)
            count = os.readv(self._answers, [target])
            if not count:
                raise EOFError
            target = target[count:]

    def has_more(self) -> bool:
        mark = bytearray(1)
        self.read_into(memoryview(mark))
        return mark != b"\0"

    def line(self) -> dict[str, Any]:
        """Raises _Refused, and as `read_into`."""
        line, byte = bytearray(), bytearray(1)
        while byte != b"\n" and len(line) < LONGEST_LINE:
            self.read_into(memoryview(byte))
            line += byte
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise _Refused(answer["error"])
        return answer

    def _wait(self, *, writing: bool) -> None:
        ready = select.poll()
        ready.register(*(self._requests, select.POLLOUT) if writing else (self._answers, select.POLLIN))
        began = time.monotonic()
        found = ready.poll(1000 * self.seconds)
        self.seconds = max(self.seconds - (time.monotonic() - began), 0.0)
        if not found:
            raise TimeoutError

    def end(self) -> None:
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass
