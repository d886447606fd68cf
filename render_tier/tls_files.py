"""Certificate files that settings name, tried before anything starts: a mistake is one line that names one.

Of both services. What ``ssl`` itself says of a file that is missing leaves out which.
"""

from __future__ import annotations

import ssl
from pathlib import Path

AnyPath = str | Path


class UnusableFile(ValueError):
    """The message names the file."""


def check_identity(certificate: AnyPath, key: AnyPath | None) -> None:
    """A PEM certificate with its key (None: in the same file). Raises ``UnusableFile``."""
    _read(certificate)
    if key is not None:
        _read(key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise UnusableFile(f"{certificate} with the key {key or certificate}: {error}") from error


def check_authorities(file: AnyPath) -> None:
    """PEM certificates of those to be trusted. Raises ``UnusableFile``."""
    _read(file)
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        raise UnusableFile(f"{file}: {error}") from error


def _read(path: AnyPath) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise UnusableFile(f"{path}: {error.strerror}") from error
