"""The streaming parser core: token IDs in, reasoning, content and tool-call events out.

Pure: no I/O, clock, randomness, framework or tokenizer object. The whole state of a stream is a few hundred
bytes that can be written down between any two tokens (`machine.Machine.snapshot`).

Text flows through these stages, one module each::

    token IDs ─ vocabulary ─ detokenizer ─ stops (scope "all") ─ machine: grammar states, markers, bodies
                                                     │                     └ json_call ─ json_tracker
                                                     └ stops (scope "content") ─ blanks ─ events

`attribution` counts, beside that flow, which tokens were reasoning, content, a call or markup. A model
family is a table (`table.ReasoningFormat`, `table.ToolFormat`) in `formats`; `grammar` joins the two of a
deployment.
"""
