"""Token IDs to OpenAI responses: whole answers, and streams whose state travels with the client."""

from render_tier.derendering.derenderer import Derenderer
from render_tier.derendering.settings import DerenderSettings

__all__ = ["DerenderSettings", "Derenderer"]
