"""vLLM's own parsers against ours: the runner process, its client, and the differential tests."""
