"""What reading JSON from outside may raise: caught everywhere by the same name, so that none is forgotten."""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Not JSON, or not of the wanted type; a string that is not UTF-8; nested too deeply to be followed."""
