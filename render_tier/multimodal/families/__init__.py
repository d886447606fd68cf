"""The vision-language models whose images are taken here: how a prompt shows an image or a video, and what of
a processed one an engine is sent."""

from render_tier.multimodal.families.choice import family_of, video_form_of
from render_tier.multimodal.families.family import Family, Field, Replacement, Spelled
from render_tier.multimodal.families.video import VideoForm, VideoPlaces

__all__ = [
    "Family",
    "Field",
    "Replacement",
    "Spelled",
    "VideoForm",
    "VideoPlaces",
    "family_of",
    "video_form_of",
]
