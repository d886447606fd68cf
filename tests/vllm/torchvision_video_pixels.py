"""What transformers' torchvision processors make of videos: run by vLLM's Python, with torchvision beside it.

Reads a JSON list of cases of `tests.support.video_pixel_cases`. Writes the libraries' versions and, by title,
each case's summary, null where the processor refuses the video.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from tests.support.pixel_cases import summary
from tests.support.video_pixel_cases import VideoCase

PROCESSORS = {
    each.__name__: each for each in (InternVLVideoProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor)
}


def reference(case: VideoCase) -> dict[str, list[Any]] | None:
    processor = PROCESSORS[case.processor](**case.settings)
    try:
        outputs = processor(videos=[case.video()], return_tensors="pt", do_sample_frames=False)
    except ValueError:
        return None
    pixels = outputs["pixel_values_videos"].numpy()
    if "video_grid_thw" in outputs:
        return summary(
            {"pixel_values_videos": pixels, "video_grid_thw": outputs["video_grid_thw"].numpy()[0]}
        )
    # As vLLM goes on with it.
    (frames,) = pixels
    return summary({"pixel_values_videos": frames, "video_num_patches": np.array(len(frames))})


torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
given = [VideoCase(**fields) for fields in json.load(sys.stdin)]
made_by = {
    "torch": torch.__version__,
    "torchvision": torchvision.__version__,
    "transformers": transformers.__version__,
}
json.dump({"made_by": made_by, "cases": {case.title: reference(case) for case in given}}, sys.stdout)
