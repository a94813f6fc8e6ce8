"""The OpenAPI document against the service: generated requests to every operation, and the answers compared with it."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.emptying import empty
from tests.support.service import serve

CHAT = "described"
EXAMPLES = 5 if os.environ.get("CUBICLE_LONG") else 2
CHECKS: list[CheckFunction] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
ENDLESS = (
    "/api/chats/{chat}/events", "/api/chats/{chat}/ports/events", "/api/overview/events", "/api/home/events",
)  # fmt: skip


@dataclass
class Site:
    url: str
    client: httpx.AsyncClient
    document: dict[str, Any]


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    chosen = Settings(  # type: ignore[call-arg]
        _env_file=None, driver="memory", data_dir=tmp_path_factory.mktemp("openapi"), pool_size=0
    )
    async with (
        running(chosen) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        assert (await client.post(f"/api/uploads/{CHAT}/note.txt", content=b"note")).status_code == 201
        yield Site(url, client, (await client.get("/openapi.json")).json())
    await empty(make_driver(chosen))


async def test_the_document_is_openapi_3_1(site: Site) -> None:
    schemathesis.openapi.from_dict(site.document).validate()
    for schema in site.document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.timeout(300)
async def test_the_service_answers_as_the_document_says(site: Site) -> None:
    tried, wrong = await asyncio.to_thread(_ask_all, site)
    assert wrong == []
    assert tried == {
        f"{method.upper()} {path}" for path, methods in site.document["paths"].items() for method in methods
    } - {f"GET {path}" for path in ENDLESS}


def _ask_all(site: Site) -> tuple[set[str], list[str]]:
    """Which operations were asked, and what was wrong with their answers."""
    tried, wrong = set(), []
    session = requests.Session()
    session.trust_env = False
    for result in schemathesis.openapi.from_dict(site.document).get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]
        if operation.path in ENDLESS:  # it has a test of its own
            continue
        tried.add(f"{operation.method.upper()} {operation.path}")
        try:
            _ask(site.url, session, operation)
        except BaseExceptionGroup as failures:
            wrong += [f"{operation.method.upper()} {operation.path}: {failure}" for failure in failures.exceptions]
    return tried, wrong


def _ask(url: str, session: requests.Session, operation: Any) -> None:
    """The same requests in every run; all for one chat, as every other would start a sandbox of its own."""

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any) -> None:
        if "chat" in case.path_parameters:
            case.path_parameters["chat"] = CHAT
        case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=60, allow_redirects=False)

    one()


async def test_the_files_that_are_there_answer_as_the_document_says(site: Site) -> None:
    """Generated paths name nothing: the answers for what is there."""
    await site.client.post(f"/api/chats/{CHAT}/start")
    await site.client.post(f"/api/uploads/{CHAT}/folder/note.txt", content=b"note")
    granted = await site.client.post(f"/api/chats/{CHAT}/raw/uploads/folder/note.txt")
    capability = granted.json()["url"].split("/")[1]
    asked = [
        ("GET", "/api/uploads/{chat}", {}, 200),
        ("GET", "/files/{chat}", {}, 200),
        ("GET", "/files/{chat}/{path}", {"path": "uploads/folder/"}, 200),
        ("GET", "/files/{chat}/{path}", {"path": "uploads/folder/note.txt"}, 200),
        ("GET", "/files/{chat}/archive", {}, 200),
        ("POST", "/api/chats/{chat}/raw/{path}", {"path": "uploads/folder/note.txt"}, 200),
        ("GET", "/raw/{capability}/{path}", {"capability": capability, "path": "uploads/folder/note.txt"}, 200),
        ("GET", "/api/sandboxes", {}, 200),
        ("POST", "/api/sandboxes/{chat}/stop", {}, 200),
        ("GET", "/files/{chat}/{path}", {"path": "uploads/folder/note.txt"}, 409),
        ("DELETE", "/api/sandboxes/{chat}", {}, 204),
        ("GET", "/api/sandboxes", {}, 200),
        ("DELETE", "/api/sandboxes/{chat}", {}, 404),
        ("GET", "/api/admin/webhooks", {}, 200),
        ("POST", "/api/admin/webhooks/retry", {}, 404),
    ]
    schema = schemathesis.openapi.from_dict(site.document)
    for method, path, values, status in asked:
        answer = await site.client.request(method, path.format(chat=CHAT, **values))
        assert answer.status_code == status, (method, path, answer.text)
        schema[path][method].validate_response(answer)


@pytest.mark.parametrize("path", ENDLESS)
async def test_a_stream_of_events_has_the_type_that_the_document_says(site: Site, path: str) -> None:
    async with site.client.stream("GET", path.format(chat=CHAT)) as answer:
        (described,) = site.document["paths"][path]["get"]["responses"]["200"]["content"]
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, described)


async def test_an_answer_that_the_document_does_not_describe_is_found(site: Site) -> None:
    """The comparison sees a wrong value."""
    document = copy.deepcopy(site.document)
    document["components"]["schemas"]["Health"]["properties"]["status"] = {"const": "sick"}
    answer = await site.client.get("/health")
    with pytest.raises((Failure, FailureGroup)):
        schemathesis.openapi.from_dict(document)["/health"]["GET"].validate_response(answer)


async def test_the_page_shows_every_route_and_loads_nothing_from_elsewhere(site: Site) -> None:
    page = await site.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "//" not in page.text.replace(site.url, "").partition("</head>")[0]
    for path, methods in site.document["paths"].items():
        for method in methods:
            assert f"<b>{method.upper()}</b> {path}</summary>" in page.text
    for socket in site.document["x-websockets"]:
        assert f"<b>WS</b> {socket['path']}</summary>" in page.text
