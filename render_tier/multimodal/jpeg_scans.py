"""How often a JPEG goes over its pixels: each of its scans is a pass over all of them, and takes a few bytes.

Source of the format: ITU-T T.81, annex B.
"""

from __future__ import annotations

import re

END, SCAN = b"\xd9", b"\xda"
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""One that is neither a restart within a scan nor, of 0xFF, an escape or a fill byte."""


def has_more_scans(data: bytes, most: int) -> bool:
    """Whether the image in ``data``, a JPEG, has more than ``most``. What follows on its end, as a second
    picture or a film, is not looked at."""
    if data.count(b"\xff" + SCAN) <= most:
        return False
    found, place = 0, len(b"\xff\xd8")
    while (marker := _MARKER.search(data, place)) is not None and marker[1] != END:
        found += marker[1] == SCAN
        if found > most:
            return True
        place = marker.end()
        place += int.from_bytes(data[place : place + 2], "big")
    return False
