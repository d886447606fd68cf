"""The OpenAI endpoint that drives render, prefill, decode and derender for each request."""

__version__ = "0.1.0"
