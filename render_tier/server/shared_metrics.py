"""Where the metrics of several worker processes meet: a directory that each of them writes files to.

The metrics library looks for it once, when it is imported; this module therefore imports nothing of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MULTIPROCESS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def shared_metrics(workers: int) -> Iterator[None]:
    """The directory for as long as the workers run; nothing for a single process. Enter it before the server
    is imported."""
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="render-tier-metrics-") as directory:
        os.environ[MULTIPROCESS_DIRECTORY] = directory
        yield
