"""The vision-language models whose images are taken here: how a prompt shows an image, and what of a
processed image an engine is sent."""

from render_tier.multimodal.families.choice import family_of
from render_tier.multimodal.families.family import Family, Field, Replacement

__all__ = ["Family", "Field", "Replacement", "family_of"]
