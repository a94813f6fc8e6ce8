"""A program for tests that runs in a sandbox: an HTTP server that does what it is asked to, standard library only.

`python3 program.py PORT [ADDRESS]`
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CHUNK = bytes(range(256)) * 256


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        name = "on_" + url.path.strip("/").split("/")[0].replace("-", "_")
        getattr(self, name, self.on_echo)(query)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_GET

    def head(self, status: int, *lines: tuple[str, str]) -> None:
        self.send_response_only(status)
        for name, value in lines:
            self.send_header(name, value)
        self.end_headers()

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def say(self, value: object, *lines: tuple[str, str]) -> None:
        text = json.dumps(value).encode()
        self.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(text))), *lines)
        if self.command != "HEAD":
            self.wfile.write(text)

    def on_echo(self, query: dict[str, str]) -> None:
        self.say(
            {
                "method": self.command,
                "target": self.path,
                "headers": [[name, value] for name, value in self.headers.items()],
                "body": self.body().decode("latin-1"),
                "pid": os.getpid(),
                "peer": self.client_address[1],
            }
        )

    def on_count(self, query: dict[str, str]) -> None:
        size = 0
        left = int(self.headers["Content-Length"])
        while left:
            chunk = self.rfile.read(min(left, 1 << 16))
            size += len(chunk)
            left -= len(chunk)
        self.say({"size": size})

    def on_unread(self, query: dict[str, str]) -> None:
        """Answers without a look at the body, and keeps the connection."""
        self.say({"answered": "early"})

    def on_headers(self, query: dict[str, str]) -> None:
        lines = [tuple(line.split(": ", 1)) for line in json.loads(query["lines"])]
        self.say({}, *lines)  # type: ignore[arg-type]

    def on_status(self, query: dict[str, str]) -> None:
        lines = [("Location", query["to"])] if "to" in query else []
        if query["code"] not in ("204", "304"):
            lines.append(("Content-Length", "0"))
        self.head(int(query["code"]), *lines)

    def on_size(self, query: dict[str, str]) -> None:
        """So many bytes, or the part of them that Range names."""
        size, begin = int(query["n"]), 0
        end = size
        if ranged := self.headers.get("Range"):
            first, _, last = ranged.removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last) + 1 if last else size
        lines = [("Content-Length", str(end - begin)), ("Accept-Ranges", "bytes")]
        if ranged:
            lines.append(("Content-Range", f"bytes {begin}-{end - 1}/{size}"))
        self.head(206 if ranged else 200, *lines)
        while self.command != "HEAD" and begin < end:
            part = CHUNK[begin % len(CHUNK) :][: end - begin]
            self.wfile.write(part)
            begin += len(part)

    def on_chunks(self, query: dict[str, str]) -> None:
        self.head(200, ("Transfer-Encoding", "chunked"))
        one = b"%x\r\n%s\r\n" % (int(query["size"]), b"x" * int(query["size"]))
        for _ in range(0, int(query["n"]), 1000):
            self.wfile.write(one * min(1000, int(query["n"])))
        self.wfile.write(b"0\r\n\r\n")

    def on_events(self, query: dict[str, str]) -> None:
        self.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        for number in range(int(query.get("n", "1000000"))):
            event = f"data: {number} {time.time()}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(float(query.get("every", "0.05")))
        self.wfile.write(b"0\r\n\r\n")

    def on_flood(self, query: dict[str, str]) -> None:
        """Sends without end; the note, which is there before the first byte, tells how far it came."""
        sent = 0
        self.note(query["note"], sent)
        self.head(200, ("Content-Type", "application/octet-stream"), ("Connection", "close"))
        while True:
            sent += self.connection.send(CHUNK)
            self.note(query["note"], sent)

    def note(self, path: str, sent: int) -> None:
        with open(path + ".new", "w") as file:
            file.write(str(sent))
        os.replace(path + ".new", path)

    def on_raw(self, query: dict[str, str]) -> None:
        """Whatever bytes the query has, then the end."""
        self.wfile.write(bytes.fromhex(query["hex"]))
        self.close_connection = True

    def on_hang_up(self, query: dict[str, str]) -> None:
        self.close_connection = True

    def on_sleep(self, query: dict[str, str]) -> None:
        time.sleep(float(query["seconds"]))
        self.say({})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


if __name__ == "__main__":
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    if ":" in address:
        import socket

        Server.address_family = socket.AF_INET6
    Server((address, int(sys.argv[1])), Handler).serve_forever()
