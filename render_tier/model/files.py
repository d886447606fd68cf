"""Where a model's small files are: a local directory, or a snapshot of a hub repository.

Only configuration, tokenizer and template files are ever looked at; weights are never downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

HUB_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "params.json",
    "tekken.json",
    "tokenizer.model.v*",
    "tokenizer.mm.model.v*",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""What is read of a model repository."""


class ModelLoadError(Exception):
    """The model cannot be served; the message names the file and the remedy. Raised at start only."""


def locate(model: str, revision: str | None = None) -> Path:
    """The directory that holds ``model``'s files: ``model`` itself when it is a directory, otherwise a hub
    snapshot (downloaded on first use, then served from the hub cache).

    Raises ModelLoadError when it is neither.
    """
    directory = Path(model).expanduser()
    if directory.is_dir():
        return directory
    if directory.is_absolute() or model.startswith((".", "~")):
        raise ModelLoadError(f"model directory {model!r} does not exist")
    # Imported late: the hub client costs 0.2 s and 20 MB that a local directory need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(HUB_PATTERNS)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{model!r} is neither a directory nor a model that the hub can deliver: {reason}"
        ) from error


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None when there is no such file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} is not a JSON object: {error}") from error
