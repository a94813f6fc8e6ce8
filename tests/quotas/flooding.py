"""One tenant that floods a service, in a process of its own: calls in many chats and uploads, again and again.

python flooding.py URL KEY CHATS UPLOADS
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "bash_tool", "arguments": {"command": "true", "description": "flood"}},
}


async def main(url: str, key: str, chats: int, uploads: int) -> None:
    os.nice(10)  # a real one has a machine of its own
    limits, bearer = httpx.Limits(max_connections=chats + uploads), {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False, limits=limits) as client:

        async def call(chat: str) -> None:
            headers = {**bearer, "X-Chat-Id": chat, "Accept": "application/json, text/event-stream"}
            while True:
                await client.post("/mcp", json=CALL, headers=headers)

        async def upload(chat: str) -> None:
            while True:
                await client.post(f"/api/uploads/{chat}/x.txt", content=b"x" * 1000, headers=bearer)

        async with asyncio.TaskGroup() as group:
            for number in range(chats):
                group.create_task(call(f"flood-{number}"))
            for number in range(uploads):
                group.create_task(upload(f"flood-{number}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
