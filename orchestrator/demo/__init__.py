"""`pd-orchestrator demo`: the whole system on one machine, as separate processes, and a chat through it."""
