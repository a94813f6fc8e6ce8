"""The older transport of MCP: the address to post to is replaced, and can only be the server's own."""

from __future__ import annotations

import pytest

from cubicle.agents.gateway_sse import BadEndpoint, Endpoint

SERVER = "https://tools.example.org:8443/base/sse"
STREAM = (
    b": hello\r\n\r\nevent: ping\ndata: x\n\nevent: endpoint\r\ndata: /messages?id=1\r\n\r\ndata: {}\n\ndata: /messages"
)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_address_to_post_to_is_replaced_however_the_stream_is_cut(step: int) -> None:
    endpoint = Endpoint(SERVER, "/mcp/tools/abc")
    passed = b"".join(endpoint.pass_on(STREAM[at : at + step]) for at in range(0, len(STREAM), step))
    assert endpoint.url == "https://tools.example.org:8443/messages?id=1"
    assert passed == (
        b": hello\r\n\r\nevent: ping\ndata: x\n\nevent: endpoint\ndata: /mcp/tools/abc\n\ndata: {}\n\ndata: /messages"
    )


@pytest.mark.parametrize(
    "address",
    [
        *("https://evil.example/messages", "//evil.example/x", "http://tools.example.org:8443/x"),
        *(
            "https://tools.example.org/x",
            "https://tools.example.org:8443@evil.example/",
            "https://[",
            "file:///etc/passwd",
        ),
    ],
)
def test_a_server_cannot_have_its_credential_sent_elsewhere(address: str) -> None:
    endpoint = Endpoint(SERVER, "/mcp/tools/abc")
    with pytest.raises(BadEndpoint):
        endpoint.pass_on(f"event: endpoint\ndata: {address}\n\n".encode())
    assert not endpoint.url


def test_a_stream_that_never_says_where_to_post_is_not_kept_in_memory() -> None:
    endpoint = Endpoint(SERVER, "/mcp/tools/abc")
    with pytest.raises(BadEndpoint):
        for _ in range(100):
            assert endpoint.pass_on(b"x" * 1000) == b""
