"""Tests that need the real vLLM (marker `vllm`, run by `make test-vllm`)."""
