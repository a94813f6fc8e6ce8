"""Servers for the tests to reach: true ones, on the loopback, in threads."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

FORGE_TOKEN = "Basic dG9rZW46aHVudGVyMg=="


class Handler(SimpleHTTPRequestHandler):
    """Says what it was asked, or sends as much as it was asked for."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path.startswith("/git/"):
            self._git(b"")
            return
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        match parts.path:
            case "/echo":
                self._echo(b"")
            case "/big":
                self._big(int(query["n"][0]))
            case "/chunked":
                self._chunked()
            case "/close":
                self._until_close()
            case "/nothing":
                self.send_response(204)
                self.end_headers()
            case "/upgrade":
                self._upgrade(query.get("accept", []))
            case _:
                super().do_GET()

    def do_HEAD(self) -> None:
        self._echo(b"")

    def do_POST(self) -> None:
        if self.path.startswith("/git/"):
            self._git(self._body())
        else:
            self._echo(self._body())

    do_PUT = do_DELETE = do_POST

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _echo(self, body: bytes) -> None:
        answer = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "peer": self.client_address[0],
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _git(self, body: bytes) -> None:
        """A forge: git's own server, for whoever has the token."""
        if self.headers.get("Authorization") != FORGE_TOKEN:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="forge"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        variables = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(Path(self.directory) / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REMOTE_USER": "somebody",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path.removeprefix("/git"),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=variables, capture_output=True, timeout=30)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _big(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = bytes(65536)
        while size > 0:
            self.wfile.write(block[:size])
            size -= len(block)

    def _chunked(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (b"one ", b"two ", b"three"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def _until_close(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
        self.close_connection = True

    def _upgrade(self, accept: list[str]) -> None:
        """Goes on in whatever protocol it is offered, as long as it is called."""
        body = self._body()
        if "Upgrade" not in self.headers:
            self._echo(body)
            return
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        for value in accept:
            self.send_header("Sec-WebSocket-Accept", value)
        self.end_headers()
        self.wfile.write(b"hello ")
        while data := self.rfile.readline():
            self.wfile.write(data.upper())
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of more callers at once than this queue holds, some would wait for a second or three
    callers = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        """Counted before it is served: whoever has heard the answer sees the count."""
        self.callers += 1
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # callers that go away are part of the tests

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def http_server(
    folder: Path, *, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    class Here(Handler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

    class Family(Server):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    server = Family((address, port), Here)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
