"""Public links of ports where several processes serve: the shares of a chat are known to its owner alone."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.free_ports import free_port
from tests.support.members import Worker, workers

KEY = {"Authorization": "Bearer the-only-key"}
PAGE = {"Accept": "text/html"}


async def opened(worker: Worker, url: httpx.URL, **headers: str) -> httpx.Response:
    sent = {"Host": url.netloc.decode(), **headers}
    return await worker.client.get(url.raw_path.decode(), headers=sent)


async def test_a_public_link_opens_its_port_until_it_is_revoked_whoever_is_asked(tmp_path: Path) -> None:
    async with workers(tmp_path, MCP_API_KEY="the-only-key", PREVIEW_PUBLIC="*") as pair:
        owner, other = pair
        port = free_port()
        serve = f"echo shared > index.html; python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 &"
        await owner.bash("one", f"{serve} until : </dev/tcp/127.0.0.1/{port}; do :; done 2>/dev/null", **KEY)
        share = f"/api/chats/one/ports/{port}/share"
        url = httpx.URL((await owner.client.post(share, headers=KEY)).json()["url"])
        cookies = {}
        for worker in pair:
            assert (await opened(worker, url)).text == "shared\n"
            led_on = await opened(worker, url, **PAGE)
            assert led_on.status_code == 303
            cookies[worker.slot] = led_on.headers["Set-Cookie"].partition(";")[0]
            plain = url.join(led_on.headers["Location"])
            assert (await opened(worker, plain, Cookie=cookies[worker.slot])).text == "shared\n"
        assert (await other.client.delete(share, headers=KEY)).status_code == 204
        for worker in pair:
            for shown in ({}, PAGE):
                ended = await opened(worker, url, **shown)
                assert (ended.status_code, "This link was revoked" in ended.text) == (401, True)
            assert (await opened(worker, url.join("/"), Cookie=cookies[worker.slot])).status_code == 401
