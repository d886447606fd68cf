"""Which chat template a model directory carries, or which one the operator chose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from render_tier.model.files import ModelLoadError, read_json_object

DEFAULT_NAME = "default"
TOOL_USE_NAME = "tool_use"


def load_templates(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Every template by name; the unnamed one is called "default".

    As in transformers, chat_template.jinja wins over chat_template.json and tokenizer_config.json.
    """
    templates: dict[str, str] = {}
    inline = tokenizer_config.get("chat_template")
    if isinstance(inline, str):
        templates[DEFAULT_NAME] = inline
    elif isinstance(inline, list):
        for entry in inline:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name", DEFAULT_NAME))] = entry["template"]
    legacy = (read_json_object(directory / "chat_template.json") or {}).get("chat_template")
    if isinstance(legacy, str):
        templates[DEFAULT_NAME] = legacy
    main = directory / "chat_template.jinja"
    if main.is_file():
        templates[DEFAULT_NAME] = main.read_text(encoding="utf-8")
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def operator_template(given: str) -> str:
    """``--chat-template``: a file's text, or the template itself when the value cannot be a path."""
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        # A one-line template has Jinja marks; anything else was meant as a path.
        if any(mark in given for mark in ("{{", "{%", "{#", "\n")):
            return given
        raise ModelLoadError(
            f"--chat-template {given!r} is neither a readable file nor a template: {error}"
        ) from None


def select_template(templates: dict[str, str], has_tools: bool) -> str | None:
    """The template for a request: "tool_use" when the model has one and tools are given, else "default"."""
    if has_tools and TOOL_USE_NAME in templates:
        return templates[TOOL_USE_NAME]
    if DEFAULT_NAME in templates:
        return templates[DEFAULT_NAME]
    return next(iter(templates.values())) if len(templates) == 1 else None
