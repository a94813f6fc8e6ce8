"""Calls a tool of one chat until its standard input ends, then prints how many milliseconds each answer took.

Says when it is ready; what it called before that does not count.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

from bench.http import HEADERS

PARAMS = {"name": "bash_tool", "arguments": {"command": "true", "description": "bench"}}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS})


def call(connection: http.client.HTTPConnection) -> float:
    began = time.perf_counter()
    connection.request("POST", "/mcp", BODY, HEADERS | {"X-Chat-Id": "neighbour"})
    answer = connection.getresponse().read()
    if b'"isError":false' not in answer:
        raise SystemExit(f"a call failed: {answer[-500:]!r}")
    return (time.perf_counter() - began) * 1000


def main(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    call(connection)
    print("ready", flush=True)
    samples = [call(connection)]
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        samples.append(call(connection))
    print(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1])
