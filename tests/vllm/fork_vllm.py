"""Run by vLLM's interpreter: imports vLLM, then forks a `vllm` for each line that comes in on stdin.

A line is JSON, [command line without the program, file for its output]; the answer on stdout is a process id
which is the id of a session too.
"""

from __future__ import annotations

import json
import os
import signal
import sys

# What `main` imports when it is called.
import vllm.entrypoints.cli.benchmark.main
import vllm.entrypoints.cli.launch
import vllm.entrypoints.cli.serve  # noqa: F401
from vllm.entrypoints.cli.main import main

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here: they leave no zombies
for line in sys.stdin:
    words, output = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        continue
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(output, "wb") as log, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.argv = ["vllm", *words]
        main()
    finally:
        os._exit(1)
