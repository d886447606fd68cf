"""``--parser-plugin FILE``: a user's own parser families, from a Python file or a declarative one.

A ``.py`` file is run and calls `render_tier.core.formats.register` with its tables. A ``.toml`` or ``.json``
file says what the family's markers are (`render_tier.core.formats.declared`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tomllib
from pathlib import Path

import structlog

from render_tier.core.formats import register
from render_tier.core.formats.declared import DeclarationError, declared_formats
from render_tier.model.files import ModelLoadError

log = structlog.get_logger()


def load_plugin(file: str) -> str:
    """Register the file's families. Returns the digest of the file. Raises ModelLoadError."""
    path = Path(file)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"--parser-plugin {file}: {error.strerror}") from None
    try:
        if path.suffix == ".py":
            _run(path)
        elif path.suffix in (".toml", ".json"):
            text = data.decode()
            for fmt in declared_formats(tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)):
                register(fmt)
        else:
            raise ModelLoadError(f"--parser-plugin {file}: not a .py, .toml or .json file")
    except (DeclarationError, ValueError) as error:
        raise ModelLoadError(f"--parser-plugin {file}: {error}") from None
    log.info("parser_plugin", file=file)
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"parser_plugin_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does wrong, at start and with its name
        raise ModelLoadError(f"--parser-plugin {path}: {type(error).__name__}: {error}") from error
