"""One chat over render, a prefill engine, a decode engine and derender; output as `three_hop.py` prints it.

four_hop.py --render URL --prefill URL --decode URL [--stream] < CHAT_REQUEST.json
"""

from __future__ import annotations

import argparse
import json
import sys

import hops
import httpx

parser = argparse.ArgumentParser()
parser.add_argument("--render", required=True)
parser.add_argument("--prefill", required=True)
parser.add_argument("--decode", required=True)
parser.add_argument("--stream", action="store_true")
urls = parser.parse_args()

chat = {**json.load(sys.stdin), "stream": urls.stream}
with httpx.Client(timeout=120, trust_env=False) as client:
    rendered = hops.render(client, urls.render, chat)
    kv = hops.prefill(client, urls.prefill, rendered)
    if urls.stream:
        chunks = hops.generate_stream(client, urls.decode, rendered, kv)
        for chunk in hops.derender_stream(client, urls.render, chat, rendered, chunks):
            print(json.dumps(chunk), flush=True)
    else:
        generated = hops.generate(client, urls.decode, rendered, kv)
        print(json.dumps(hops.derender(client, urls.render, chat, rendered, generated)))
