"""Lets torchvision be imported beside a torch that its compiled part was not built for: on PYTHONPATH, for
programs that import it themselves. The operators that its Python part describes are declared, and never run.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec


class DeclareOperators(MetaPathFinder):
    """When torchvision is about to be imported, and not before: torch takes seconds."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(self)
        return None


_KEPT: list[DeclareOperators] = []
"""The declarations last as long as their library."""
sys.meta_path.insert(0, DeclareOperators())
