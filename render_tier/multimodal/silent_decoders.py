"""Keeps Pillow, and the library that it reads TIFF files with, from writing into the server's log.

What they have to say of a file is its sender's to decide, who could fill the log with it: a line for each row
of a fax, for one. The client is told in its answer.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from contextlib import suppress

from PIL import _imaging


def silence_decoders() -> None:
    """For the whole process."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # Pillow turns off libtiff's warnings alone. Its symbols are found through the module that is linked to
    # it; a Pillow without it has nothing to turn off.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
