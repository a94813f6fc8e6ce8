"""GET /health, GET /mcp-info, and the errors around them."""

from __future__ import annotations

from tests.support.service import Options, Service, service_of


async def test_health_is_one_field_and_needs_no_key(service: Service) -> None:
    async with service_of(service.fleet, Options({"mcp_api_key": "a-key-of-ours"})) as locked:
        for each in (service, locked):
            response = await each.client.get("/health")
            assert (response.status_code, response.json()) == (200, {"status": "healthy"})


async def test_mcp_info_says_how_to_connect(service: Service) -> None:
    info = (await service.client.get("/mcp-info")).json()
    assert set(info) == {"name", "version", "protocol_versions", "endpoint", "tools", "headers"}
    assert info["endpoint"] == f"{service.url}/mcp"
    assert info["protocol_versions"][-1] == "2026-07-28"
    assert [tool["name"] for tool in info["tools"]] == ["bash_tool", "view", "create_file", "str_replace", "sub_agent"]
    assert all(set(header) == {"name", "required", "purpose"} for header in info["headers"])
    required = {header["name"]: header["required"] for header in info["headers"]}
    assert required["X-Chat-Id"] is False
    assert required["Authorization"] is False


async def test_mcp_info_needs_the_key_and_knows_the_mode_and_the_public_address(service: Service) -> None:
    settings = {
        "mcp_api_key": "a-key-of-ours",
        "single_user_mode": "false",
        "public_base_url": "https://box.example/c/",
    }
    async with service_of(service.fleet, Options(settings)) as locked:
        assert (await locked.client.get("/mcp-info")).status_code == 401
        info = (await locked.client.get("/mcp-info", headers={"Authorization": "Bearer a-key-of-ours"})).json()
        assert info["endpoint"] == "https://box.example/c/mcp"
        required = {header["name"]: header["required"] for header in info["headers"]}
        assert required["X-Chat-Id"] is True
        assert required["Authorization"] is True


async def test_unknown_addresses_and_methods_are_problems(service: Service) -> None:
    for method, path, status in (("GET", "/none", 404), ("POST", "/health", 405)):
        response = await service.client.request(method, path)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == status
