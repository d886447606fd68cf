"""What transformers' torchvision processors make of images: the program that
`tests.vllm.torchvision_reference` runs in vLLM's environment, with torchvision beside it.

Reads a JSON list of cases of `tests.support.pixel_cases`. Writes the libraries' versions and, by title, each
case's summary, null where the processor refuses the image. With `--time` it reads a case from each line, and
writes for each the CPU seconds that processing its image took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision
import transformers
from PIL import Image
from transformers.models.gemma3.processing_gemma3 import Gemma3ProcessorKwargs
from transformers.models.internvl.processing_internvl import InternVLProcessorKwargs

from tests.support.pixel_cases import MODELS, OF_ITS_OWN, Case, summary
from vllm.transformers_utils.processors.internvl import InternVLImageProcessor


def reference(case: Case) -> dict[str, list[Any]] | None:
    """Of one item's arrays, as vLLM slices them from what the processor returns; None where it raises."""
    process = _processor(case)
    try:
        outputs = process(Image.fromarray(case.image()))
    except ValueError:
        return None
    arrays = _item(case, {key: value.numpy() for key, value in outputs.items()})
    return summary({key: np.asarray(value) for key, value in arrays.items()})


def _name(case: Case) -> str:
    return str(MODELS[case.model].preprocessor["image_processor_type"]).removesuffix("Fast")


def _processor(case: Case) -> Callable[[Image.Image], Any]:
    model = MODELS[case.model]
    if case.model == OF_ITS_OWN:
        own = {name: value for name, value in model.config.items() if name in INTERNVL}
        made = InternVLImageProcessor(
            **{**own, **case.overrides}, image_size=model.config["vision_config"]["image_size"]
        )
        return lambda image: made(images=[image], return_tensors="pt", **case.overrides)
    settings = {key: value for key, value in model.preprocessor.items() if key != "image_processor_type"}
    # vLLM makes the processor with a request's arguments and calls it with them.
    processor = getattr(transformers, _name(case))(**deepcopy(settings | dict(case.overrides)))
    assert processor.backend == "torchvision"
    arguments = deepcopy(_arguments(case) | dict(case.overrides))
    return lambda image: processor(images=[image], return_tensors="pt", **arguments)


def _arguments(case: Case) -> dict[str, Any]:
    """What the model's processor passes to its image processor."""
    if case.model == "gemma3":
        return dict(Gemma3ProcessorKwargs._defaults["images_kwargs"])
    if case.model == "internvl":
        return dict(InternVLProcessorKwargs._defaults["images_kwargs"])
    if case.model in ("mistral3", "pixtral"):
        processor = MODELS[case.model].processor
        return {"patch_size": processor.get("patch_size", 16) * processor.get("spatial_merge_size", 1)}
    return {}


INTERNVL = ("dynamic_image_size", "max_dynamic_patch", "min_dynamic_patch", "use_thumbnail")
"""What vLLM takes of config.json."""


def _item(case: Case, outputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    if case.model == OF_ITS_OWN:
        return {**outputs, "image_num_patches": outputs["image_num_patches"][0]}
    name, pixels = _name(case), outputs["pixel_values"]
    if name == "Qwen2VLImageProcessor":
        return {"pixel_values": pixels, "image_grid_thw": outputs["image_grid_thw"][0]}
    if name == "Gemma3ImageProcessor":
        return {"pixel_values": pixels, "num_patches": outputs["num_crops"][0] + 1}
    if name == "GotOcr2ImageProcessor":
        return {"pixel_values": pixels, "image_num_patches": outputs["num_patches"][0]}
    if name == "LlavaNextImageProcessor":
        return {"pixel_values": pixels[0], "image_sizes": outputs["image_sizes"][0]}
    if name == "PixtralImageProcessor":
        height, width = outputs["image_sizes"][0]
        return {"pixel_values": pixels[0, :, :height, :width]}
    return {"pixel_values": pixels[0]}


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if "--time" in sys.argv:
        _time_each()
        return
    cases = [Case(**fields) for fields in json.load(sys.stdin)]
    found = {case.title: reference(case) for case in cases}
    made_by = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    json.dump({"made_by": made_by, "cases": found}, sys.stdout)


def _time_each() -> None:
    processors: dict[str, Callable[[Image.Image], Any]] = {}
    for line in sys.stdin:
        case = Case(**json.loads(line))
        process = processors.setdefault(f"{case.model} {case.overrides}", _processor(case))
        image = Image.fromarray(case.image())
        began = time.process_time()
        process(image)
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
