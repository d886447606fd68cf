"""Image processors that give, without torch, the very pixels of transformers' torchvision processors."""

from render_tier.multimodal.processors.choice import image_processor

__all__ = ["image_processor"]
