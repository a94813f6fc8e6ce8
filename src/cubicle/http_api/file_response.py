"""A file as an answer: one that the guest handed over goes from the disk into the client's socket by the kernel alone.

uvicorn would have it copied into this process and out again, in pieces small enough for many clients at once.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

from cubicle.http_api.uvicorn_http import connection_of
from cubicle.machine.files import FileReader
from cubicle.machine.passed_file import PassedFile


class FileResponse(StreamingResponse):
    """The bytes of a file, as the server behind the request sends them fastest; `headers` tell their length."""

    def __init__(self, request: Request, reader: FileReader, status: int, headers: dict[str, str]) -> None:
        super().__init__(reader, status, headers)
        self._reader = reader
        self._connection = connection_of(request)

    async def stream_response(self, send: Send) -> None:
        connection = self._connection
        # With more requests in the pipeline, the connection's own idea of the current one is the newest.
        if connection is None or connection.has_pipelined or not isinstance(self._reader, PassedFile):
            await super().stream_response(send)
            return
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await connection.send_file(send, head, self._reader)
