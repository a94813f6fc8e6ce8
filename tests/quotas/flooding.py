"""One tenant that floods a service, in a process of its own: calls in many chats and uploads, again and again.

python flooding.py URL CHATS UPLOADS
"""

from __future__ import annotations

import asyncio
import sys

import httpx

KEY = {"Authorization": "Bearer acme-key"}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "bash_tool", "arguments": {"command": "true", "description": "flood"}},
}


async def main(url: str, chats: int, uploads: int) -> None:
    limits = httpx.Limits(max_connections=chats + uploads)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False, limits=limits) as client:

        async def call(chat: str) -> None:
            headers = {**KEY, "X-Chat-Id": chat, "Accept": "application/json, text/event-stream"}
            while True:
                await client.post("/mcp", json=CALL, headers=headers)

        async def upload(chat: str) -> None:
            while True:
                await client.post(f"/api/uploads/{chat}/x.txt", content=b"x" * 1000, headers=KEY)

        async with asyncio.TaskGroup() as group:
            for number in range(chats):
                group.create_task(call(f"flood-{number}"))
            for number in range(uploads):
                group.create_task(upload(f"flood-{number}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
