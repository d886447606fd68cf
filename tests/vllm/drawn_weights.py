"""Lets a vLLM draw the weights of a model instead of loading them: `--load-format drawn`. Every process draws
the same ones, and what a model says depends on each token and picture that it is shown; with vLLM's own
`dummy` it does not.

Imported by vLLM's processes; for an engine's, name `DrawnWeights` as `--worker-extension-cls`.
"""

from __future__ import annotations

import torch
from torch import nn

from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

SCALE = 2.0
"""Large keys and queries, or attention would be an average in which no single token counts."""


@register_model_loader("drawn")
class DrawingLoader(BaseModelLoader):
    def download_model(self, model_config: ModelConfig) -> None:
        pass

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        generator = torch.Generator().manual_seed(11)
        for module in model.modules():
            for name, weights in module.named_parameters(recurse=False):
                draw(type(module).__name__, name, weights.data, generator)


def draw(module: str, name: str, weights: torch.Tensor, generator: torch.Generator) -> None:
    if "bias" in name:
        weights.zero_()
    elif "Norm" in module:
        weights.fill_(0.0 if module.startswith("Gemma") else 1.0)  # Gemma's are added to one
    else:
        fan_in = weights[0].numel() if weights.ndim > 1 else 1
        weights.normal_(0, SCALE / fan_in**0.5, generator=generator)


class DrawnWeights:
    """Adds nothing to a worker: an engine imports this module to find it."""
