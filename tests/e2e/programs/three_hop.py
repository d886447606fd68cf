"""One chat over render, one engine and derender; prints the completion, or one chunk a line with --stream.

three_hop.py --render URL --engine URL [--stream] < CHAT_REQUEST.json
"""

from __future__ import annotations

import argparse
import json
import sys

import hops
import httpx

parser = argparse.ArgumentParser()
parser.add_argument("--render", required=True)
parser.add_argument("--engine", required=True)
parser.add_argument("--stream", action="store_true")
urls = parser.parse_args()

chat = {**json.load(sys.stdin), "stream": urls.stream}
with httpx.Client(timeout=120, trust_env=False) as client:
    rendered = hops.render(client, urls.render, chat)
    if urls.stream:
        chunks = hops.generate_stream(client, urls.engine, rendered)
        for chunk in hops.derender_stream(client, urls.render, chat, rendered, chunks):
            print(json.dumps(chunk), flush=True)
    else:
        generated = hops.generate(client, urls.engine, rendered)
        print(json.dumps(hops.derender(client, urls.render, chat, rendered, generated)))
