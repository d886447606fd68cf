"""gunicorn's logger without handlers of its own: its lines take the one structured form. Of both services."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger


class PropagatingLogger(Logger):  # type: ignore[misc]
    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True
