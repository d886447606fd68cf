"""A vLLM plugin for engines on a small machine without GPUs; vLLM calls `register` in each of its processes.

Two defaults make a pair of engines with NIXL unusable on two cores, and neither has a setting:

- NIXL's progress thread is created with a delay of 0 between polls, so that each engine keeps one core busy
  while idle. Here it waits a millisecond.
- The NIXL connector binds its worker's main thread, which on the CPU platform is the one that runs the model,
  to the last core of a NUMA node; both engines get the same one. With no topology to read, nothing is bound.
"""

import os

POLL_DELAY_US = 1000


def register() -> None:
    """Change both defaults; does nothing on a platform with GPUs or without NIXL."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    type(current_platform).discover_numa_topology = classmethod(lambda cls: [])
    # The connector sets this bound of UCX itself, but only while NIXL is not imported; below it is.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    try:
        import nixl._api as nixl_api
    except ImportError:
        return
    config_class = nixl_api.nixlBind.nixlAgentConfig
    if config_class.__module__ == __name__:
        return

    class PatientAgentConfig(config_class):
        """The agent's configuration, where a progress thread without pause is not to be had."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, POLL_DELAY_US if name == "pthrDelay" and not value else value)

    nixl_api.nixlBind.nixlAgentConfig = PatientAgentConfig
