"""Modules that are not installed, for a while."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = builtins.__import__

    def importing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("llvmlite"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", importing)
        yield
