"""Run by vLLM's Python, with torchvision beside it: what vLLM makes of chats with videos.

Reads by the names of models, whose directories are here, and of chats these chats' contents and what they say
of how those are read and processed.
Writes the libraries' versions and, by model and chat, the prompt's IDs, and of each item its hash, place and
fields.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import torch
import torchvision
import transformers

import vllm
from tests.support.image_corpus import read_item
from tests.support.video_models import CHAT
from vllm.config import ModelConfig
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import encode_mm_kwargs_item
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.renderers.chat_utils import parse_chat_messages_async


class Model:
    def __init__(self, directory: str) -> None:
        self.config = ModelConfig(model=directory, enforce_eager=True, trust_remote_code=True)
        self._format = "string" if directory == CHAT else "openai"
        self.processor = MULTIMODAL_REGISTRY.create_processor(self.config)
        self.tokenizer = self.processor.info.get_tokenizer()

    def of_chat(self, content: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
        """As vLLM's render does it, for engines that scale and normalize pixels."""
        messages = [{"role": "user", "content": content}]
        media_io_kwargs = options.get("media_io_kwargs")
        try:
            conversation, data, uuids = asyncio.run(
                parse_chat_messages_async(messages, self.config, self._format, media_io_kwargs)
            )
        except Exception as error:
            return {"error": str(error)}
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        inputs = ProcessorInputs(
            self.tokenizer.encode(text, add_special_tokens=False),
            self.processor.info.parse_mm_data(data),
            uuids,
            hf_processor_mm_kwargs=options.get("mm_processor_kwargs", {}),
            media_io_kwargs=media_io_kwargs or {},
        )
        try:
            made = self.processor.apply(inputs, TimingContext(enabled=False))
        except Exception as error:
            return {"error": str(error)}
        return {
            "ids": made["prompt_token_ids"],
            "hashes": made["mm_hashes"],
            "ranges": {
                kind: [runs(where) for where in places] for kind, places in made["mm_placeholders"].items()
            },
            "items": {
                kind: [read_item(encode_mm_kwargs_item(tensors(item))) for item in items]
                for kind, items in made["mm_kwargs"].items()
            },
        }


def tensors(item: MultiModalKwargsItem) -> MultiModalKwargsItem:
    """Without Qwen3-VL's list of times, which the model does not read."""
    return MultiModalKwargsItem({name: field for name, field in item.items() if name != "timestamps"})


def runs(where: Any) -> list[list[int]]:
    """[offset, length] of each run of tokens that embeddings replace."""
    mask = np.ones(where.length, bool) if where.is_embed is None else where.is_embed.numpy()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [
        [where.offset + int(start), int(stop - start)]
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def main() -> None:
    torch.set_num_threads(1)
    given = json.load(sys.stdin)
    models = {}
    for name, chats in given.items():
        model = Model(name)
        models[name] = {title: model.of_chat(*each) for title, each in chats.items()}
    made_by = {
        "vllm": vllm.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
    json.dump({"made_by": made_by, "models": models}, sys.stdout)


main()
