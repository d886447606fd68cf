"""Where a client's images and videos are: in a data URL, in a file that clients may read, or on the web."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pybase64 import b64decode

SCHEMES = ("http", "https")
FRAMES_TYPE = "video/jpeg"
LONGEST_FILE_URL = 1 << 13
"""Twice the characters of the longest path that there is. To resolve one takes the square of its length."""


class Bounded(Protocol):
    @property
    def max_bytes(self) -> int: ...
    @property
    def what(self) -> str: ...


class SourceRefused(ValueError):
    """A URL of which nothing may, or can, be had; the message does not hold the URL."""


@dataclass(frozen=True)
class SourceRules:
    max_bytes: int
    """Of one file."""
    directory: Path | None = None
    """Below which files may be read; resolved."""
    what: str = "image"
    """Is read, for messages."""


def is_remote(url: str) -> bool:
    return url[:6].lower().startswith(("http:", "https:"))


def is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


def read_local(url: str, rules: SourceRules) -> bytes:
    """The bytes of a ``data:`` or ``file:`` URL. Raises SourceRefused."""
    scheme = url[:5].lower()
    if scheme == "data:":
        return _data(url, rules)
    if scheme == "file:":
        return _file(url, rules)
    raise SourceRefused("the URL must be either a HTTP, data or file URL")


def listed_frames(url: str, rules: SourceRules) -> bytes | None:
    """What a ``data:`` URL has for a list of a video's frames, still in base64; None for another URL. Raises
    SourceRefused."""
    if not is_data(url):
        return None
    start = _start_of_data(url)
    if url[5 : start - 1].split(";")[0].lower() != FRAMES_TYPE:
        return None
    if len(url) - start > rules.max_bytes:
        raise too_large(rules)
    try:
        return url[start:].encode("ascii")
    except UnicodeEncodeError:
        raise SourceRefused("a data URL that is not base64") from None


def _start_of_data(url: str) -> int:
    comma = url.find(",", 5, 5 + 1024)
    if comma < 0:
        raise SourceRefused("a data URL without ','")
    if not url[5:comma].endswith(";base64"):
        raise SourceRefused("only base64 data URLs are supported")
    return comma + 1


def _data(url: str, rules: SourceRules) -> bytes:
    start = _start_of_data(url)
    if (len(url) - start) // 4 * 3 > rules.max_bytes + 2:
        raise too_large(rules)
    try:
        data = b64decode(url[start:], validate=True)
    except ValueError as error:
        raise SourceRefused(f"a data URL that is not base64: {error}") from None
    if len(data) > rules.max_bytes:
        raise too_large(rules)
    return data


def _file(url: str, rules: SourceRules) -> bytes:
    if rules.directory is None:
        raise SourceRefused("cannot load local files without `--allowed-local-media-path`")
    if len(url) > LONGEST_FILE_URL:
        raise SourceRefused(f"a file URL of more than {LONGEST_FILE_URL} characters")
    try:
        parts = urlsplit(url)
        path = Path(unquote(parts.netloc + parts.path)).resolve()
    except (ValueError, OSError, RuntimeError):
        raise SourceRefused("a file URL that names no file") from None
    if rules.directory not in path.parents:
        raise SourceRefused("the file must be below `--allowed-local-media-path`")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceRefused("the file is none that can be read")
            data = file.read(rules.max_bytes + 1)
    except OSError:
        raise SourceRefused("the file cannot be read") from None
    if len(data) > rules.max_bytes:
        raise too_large(rules)
    return data


def too_large(rules: Bounded) -> SourceRefused:
    return SourceRefused(f"the {rules.what}'s file is larger than {rules.max_bytes} bytes")
