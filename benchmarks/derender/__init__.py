"""Streaming derender beside `vllm launch render`: cost of a stream by length, many streams at once, and what
they do to renders."""
