"""One streamed chat over render, one engine and derender on any of several tiers; the context is sent once.

three_hop_digest.py --render URL [--render URL] --engine URL < CHAT_REQUEST.json
"""

from __future__ import annotations

import argparse
import json
import sys

import hops
import httpx

parser = argparse.ArgumentParser()
parser.add_argument("--render", required=True, action="append")
parser.add_argument("--engine", required=True)
urls = parser.parse_args()

chat = {**json.load(sys.stdin), "stream": True}
with httpx.Client(timeout=120, trust_env=False) as client:
    rendered = hops.render(client, urls.render[0], chat)
    chunks = hops.generate_stream(client, urls.engine, rendered)
    for chunk in hops.derender_stream_short(client, urls.render, chat, rendered, chunks):
        print(json.dumps(chunk), flush=True)
