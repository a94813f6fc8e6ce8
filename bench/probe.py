"""Asks /health until its standard input ends, then prints how many milliseconds each answer took."""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit


def main(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    samples: list[float] = []
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        began = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        samples.append((time.perf_counter() - began) * 1000)
    print(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1])
