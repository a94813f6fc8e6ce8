"""What the page handlers answer: policy, caching, escaping, prefixes."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient

from cubicle.http_api.assets import Assets, AssetsMissing
from cubicle.http_api.page_policy import BadEmbedder, page_policy, viewer_policy
from cubicle.http_api.pages import Pages
from cubicle.http_api.route_table import RouteTable

PAGES = ["/login", "/admin", "/preview/c1/", "/preview/c1/a/b.md", "/browser/c1/", "/terminal/c1/"]
HOSTILE = "\"'><img src=x onerror=alert(1)>&amp;</title><script>alert(2)</script>.txt"


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = Starlette(
        routes=RouteTable().bind(pages=Pages(raw_base=lambda request: f"raw/cap-{request.path_params['chat']}/"))
    )
    with TestClient(app) as client:
        yield client


def facts(answer: str) -> dict[str, object]:
    found = re.search(r'data-page="([^"]*)"', answer)
    assert found
    facts = json.loads(html.unescape(found[1]))
    assert isinstance(facts, dict)
    return facts


def directives(policy: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition(" ") for part in policy.split("; "))}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_only_scripts_of_the_service_and_is_kept_nowhere(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = directives(answer.headers["content-security-policy"])
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["frame-src"] == "'self'"
    assert policy["base-uri"] == "'none'"
    assert policy["frame-ancestors"] == "'self'"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in answer.text
    assert "https://" not in answer.text


def test_the_viewer_frame_has_an_opaque_origin_and_no_network(client: TestClient) -> None:
    answer = client.get("/static/viewer")
    policy = directives(answer.headers["content-security-policy"])
    assert policy["sandbox"] == "allow-scripts"
    assert policy["connect-src"] == policy["form-action"] == policy["frame-src"] == "'none'"
    assert "unsafe-inline" not in policy["script-src"]
    assert facts(answer.text)["chat"] == ""


def test_embedders_may_frame_the_pages_and_the_viewer() -> None:
    for policy in (page_policy(["https://chat.example.org"]), viewer_policy(["https://chat.example.org"])):
        assert directives(policy)["frame-ancestors"] == "'self' https://chat.example.org"


@pytest.mark.parametrize("embedder", ["https://a.example; script-src *", "*", "a b", "'unsafe-inline'", ""])
def test_an_embedder_that_is_no_origin_stops_the_start(embedder: str) -> None:
    with pytest.raises(BadEmbedder):
        Pages(embedders=[embedder])


def test_names_from_the_sandbox_are_text(client: TestClient) -> None:
    answer = client.get("/preview/c1/" + HOSTILE.replace("/", "%2F").replace("&", "%26").replace("<", "%3C"))
    assert "<img" not in answer.text
    assert answer.text.count("<script") == 1
    assert facts(answer.text)["path"] == HOSTILE


def test_a_name_may_hold_a_line_break(client: TestClient) -> None:
    assert facts(client.get("/preview/c1/a%0Ab").text)["path"] == "a\nb"


def test_a_name_that_is_no_utf_8_comes_to_the_page_byte_for_byte(client: TestClient) -> None:
    answer = client.get("/preview/c1/a%2Fb/inv%FF.txt?embed=1")
    assert answer.status_code == 200
    assert facts(answer.text)["path"] == "a/b/inv\udcff.txt"
    assert "<title>inv\ufffd.txt · c1 · Cubicle</title>" in answer.text


def test_messages_and_the_way_back_are_text(client: TestClient) -> None:
    answer = client.get("/login", params={"next": HOSTILE})
    assert "<img" not in answer.text
    assert facts(answer.text)["next"] == HOSTILE


@pytest.mark.parametrize("chat", [".hidden", "a b", "x" * 129, "<b>"])
def test_what_is_no_chat_id_is_refused_in_words(client: TestClient, chat: str) -> None:
    answer = client.get(f"/terminal/{chat}/")
    assert answer.status_code == 400
    assert "A chat id is" in answer.text
    assert "<b>" not in answer.text


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/login", "./"),
        ("/terminal/c1/", "../../"),
        ("/preview/c1/", "../../"),
        ("/preview/c1/a.md", "../../"),
        ("/preview/c1/a/b/c.md", "../../../../"),
        # An encoded slash is one segment for the browser too.
        ("/preview/c1/a%2Fb.md", "../../"),
    ],
)
def test_the_way_to_the_root_is_relative_and_counted_as_the_browser_does(
    client: TestClient, path: str, root: str
) -> None:
    answer = client.get(path)
    assert facts(answer.text)["root"] == root
    assert f'src="{root}static/assets/' in answer.text


def test_a_prefix_that_the_service_knows_of_does_not_count() -> None:
    inner = Starlette(routes=RouteTable().bind(pages=Pages()))
    with TestClient(Starlette(routes=[Mount("/deep/prefix", app=inner)])) as client:
        answer = client.get("/deep/prefix/terminal/c1/")
        assert facts(answer.text)["root"] == "../../"
        assert client.get("/deep/prefix/static/icon.svg").status_code == 200
    with TestClient(inner, root_path="/told") as client:
        assert facts(client.get("/told/terminal/c1/").text)["root"] == "../../"


@pytest.mark.parametrize("page", ["preview", "browser", "terminal"])
def test_a_missing_slash_is_added_without_losing_the_signature(client: TestClient, page: str) -> None:
    answer = client.get(f"/{page}/c1?key=abc", follow_redirects=False)
    assert answer.status_code == 308
    assert answer.headers["location"] == "./c1/?key=abc"


def test_the_page_learns_its_chat_file_capability_and_whether_it_is_embedded(client: TestClient) -> None:
    told = facts(client.get("/preview/c1/a/b.md?embed=1").text)
    assert (told["chat"], told["path"], told["raw"], told["embed"]) == ("c1", "a/b.md", "raw/cap-c1/", True)


def test_a_failed_sign_in_is_told() -> None:
    pages = Pages()

    async def refuse(request: object) -> Response:
        return pages.login_page(request, message="That key is <wrong>.", status=401)  # type: ignore[arg-type]

    app = Starlette()
    app.add_route("/login", refuse, methods=["POST"])
    with TestClient(app) as client:
        answer = client.post("/login")
    assert answer.status_code == 401
    assert facts(answer.text)["message"] == "That key is <wrong>."


@pytest.mark.parametrize("page", ["terminal", "live", "workspace", "viewer", "login", "admin"])
def test_the_first_load_of_a_page_is_small(page: str) -> None:
    assets = Assets()
    entry = assets.entry(page)
    files = [entry.script, *entry.preloads, *entry.styles]
    size = sum(len(gzip.compress((assets.folder / name).read_bytes())) for name in files)
    assert size < 60_000, f"{page} loads {size} bytes"


def test_hashed_assets_are_kept_for_good_and_open_to_the_viewer_frame(client: TestClient) -> None:
    script = Assets().entry("terminal").script
    answer = client.get(f"/static/{script}", headers={"accept-encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "javascript" in answer.headers["content-type"]
    assert "immutable" not in client.get("/static/icon.svg").headers["cache-control"]


def test_assets_are_compressed(client: TestClient) -> None:
    entry = Assets().entry("workspace")
    answer = client.get(f"/static/{entry.script}", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    "path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static/..%2fpages.py", "/static//etc/passwd"]
)
def test_nothing_but_the_built_files_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_build_holds_no_source_maps_and_no_addresses_of_registries() -> None:
    folder = Assets().folder
    assert not list(folder.rglob("*.map"))
    for script in folder.glob("assets/*.js"):
        assert "sourceMappingURL=" not in script.read_text("utf-8"), script.name


def test_pages_that_were_not_built_say_how_to_build_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(AssetsMissing, match=r"web/build\.sh"):
        Pages(static=tmp_path_factory.mktemp("empty"))


def test_the_preview_of_a_file_that_is_not_there_is_the_same_page_with_404() -> None:
    async def nothing(request: Request) -> bool:
        return False

    with TestClient(Starlette(routes=RouteTable().bind(pages=Pages(is_there=nothing)))) as client:
        missing = client.get("/preview/c1/to-come.txt")
        assert missing.status_code == 404
        assert facts(missing.text)["path"] == "to-come.txt"
        assert client.get("/preview/c1/").status_code == 200  # a chat without files is a page too


@pytest.mark.parametrize("page", ["preview", "browser", "terminal"])
def test_what_is_no_chat_is_not_sent_on_to_its_page(client: TestClient, page: str) -> None:
    assert client.get(f"/{page}/.hidden", follow_redirects=False).status_code == 400
