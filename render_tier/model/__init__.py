"""The served model's files, read once: tokenizer, vocabulary, template, limits, fingerprint."""

from render_tier.model.assets import ModelAssets, load_assets
from render_tier.model.files import ModelLoadError

__all__ = ["ModelAssets", "ModelLoadError", "load_assets"]
