"""POST, GET and DELETE /api/uploads/<chat>."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from cubicle.core import problem
from cubicle.core.chat import Chat
from cubicle.core.paths import BadPath, readable, upload_name
from cubicle.core.resource_uris import UploadUri
from cubicle.fairness.fair_slots import FairSlots
from cubicle.files.uploads import FOLDER, DiskFull, NameTaken, TooLarge, Upload, Uploads, bounded
from cubicle.http_api.audited import note_audit
from cubicle.http_api.chats import chat_of
from cubicle.http_api.errors import HttpRefusal, refuse
from cubicle.http_api.models import UploadedFile, UploadList
from cubicle.http_api.multipart import BadForm, file_of, is_multipart
from cubicle.http_api.request_bodies import body_of, chunks_of
from cubicle.http_api.urls import tail
from cubicle.http_api.waking import wants_wake
from cubicle.machine.zero_copy import BrokeOff

_FORM_ROOM = 64 * 1024
"""What a form may be larger than the file in it."""


class UploadRoutes:
    def __init__(self, uploads: Uploads, max_upload_mb: int) -> None:
        self._uploads = uploads
        self._limit = max_upload_mb * 1024**2
        self._saves = FairSlots(total=64, of_tenant=32, of_chat=64)
        self._lists = FairSlots(total=4, of_tenant=2, of_chat=16)

    async def nameless(self, request: Request) -> Response:
        raise refuse(400, "The address lacks the file's name: POST /api/uploads/<chat>/<filename>.")

    async def save(self, request: Request) -> Response:
        """Take the body as it comes, straight into the sandbox."""
        chat = chat_of(request)
        path = _name(request)
        content_type = request.headers.get("Content-Type", "")
        form = is_multipart(content_type)
        most = self._limit + (_FORM_ROOM if form else 0)
        self._check_length(request, most)
        content = file_of(content_type, bounded(chunks_of(request), most)) if form else body_of(request)
        try:
            async with self._saves.hold(chat):
                upload, digest = await self._uploads.save(chat, path, content, limit=self._limit)
        except TooLarge:
            raise HttpRefusal(problem.too_large(self._limit)) from None
        except DiskFull:
            raise refuse(507, "The sandbox of this chat has no room for the file. Delete something first.") from None
        except NameTaken:
            raise refuse(409, "There is a folder of that name, or a file where the path has a folder.") from None
        except BadForm as error:
            raise refuse(400, str(error)) from None
        except (ClientDisconnect, BrokeOff):
            raise refuse(400, "The upload broke off.") from None
        note_audit(request, size=upload.size, sha256=digest)
        return JSONResponse(_record(chat, upload, digest), 201)

    async def listed(self, request: Request) -> Response:
        chat = chat_of(request)
        await self._uploads.look(chat, wake=wants_wake(request))
        async with self._lists.hold(chat):
            found, complete = await self._uploads.with_sums(chat, wake=wants_wake(request))
            return await asyncio.to_thread(_list, chat, found, complete)  # of a hundred thousand: it takes a second

    async def remove(self, request: Request) -> Response:
        chat = chat_of(request)
        if not await self._uploads.remove(chat, _name(request)):
            raise refuse(404, "There is no such upload.")
        return Response(status_code=204)

    def _check_length(self, request: Request, limit: int) -> None:
        """Refuse before the first byte what says itself that it is too large."""
        length = request.headers.get("Content-Length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > limit:
            raise HttpRefusal(problem.too_large(self._limit))


def _name(request: Request) -> str:
    try:
        return upload_name(tail(request))
    except BadPath as error:
        raise refuse(400, str(error)) from None


def _list(chat: Chat, found: Sequence[tuple[Upload, str | None]], complete: bool) -> Response:
    files = [_record(chat, upload, digest) for upload, digest in found]
    return JSONResponse(UploadList(files=files) if complete else UploadList(files=files, complete=False))


def _record(chat: Chat, upload: Upload, digest: str | None) -> UploadedFile:
    path = readable(upload.path)
    return UploadedFile(
        filename=path,
        path=f"{FOLDER}/{path}",
        size=upload.size,
        sha256=digest,
        uri=str(UploadUri(chat.id, path)),
        mimeType=upload.media_type,
    )
