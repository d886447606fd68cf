"""Stateless CPU service: OpenAI requests to token IDs (render) and token IDs back to OpenAI responses
(derender).
"""

__version__ = "0.1.0"
