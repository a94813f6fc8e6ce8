"""What the service uses of uvicorn's insides is still there, under the same names.

When one of these fails after an upgrade: read what uvicorn does now, change http_api/uvicorn_http.py or uvicorn_ws.py,
and only then the pin in pyproject.toml.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.websockets import websockets_sansio_impl
from websockets.server import ServerProtocol

from cubicle.http_api import uvicorn_http, uvicorn_ws

ROOT = Path(__file__).parents[2]
USED: dict[type, dict[str, type]] = {
    uvicorn_http.HttpConnection: {
        "self": httptools_impl.HttpToolsProtocol,
        "self.cycle": httptools_impl.RequestResponseCycle,
        "self.flow": FlowControl,
        "self.parser": httptools.HttpRequestParser,
        "cycle": httptools_impl.RequestResponseCycle,
    },
    uvicorn_ws.ClientSocket: {
        "self": websockets_sansio_impl.WebSocketsSansIOProtocol,
        "self.conn": ServerProtocol,
    },
    uvicorn_http.Server: {"self": uvicorn.Server},
}
"""Each class of ours, and what the names in it stand for."""
SIGNATURES: dict[Any, list[str]] = {
    httptools_impl.HttpToolsProtocol.data_received: ["self", "data"],
    httptools_impl.HttpToolsProtocol.send_400_response: ["self", "msg"],
    httptools_impl.HttpToolsProtocol.handle_websocket_upgrade: ["self"],
    httptools_impl.HttpToolsProtocol.on_url: ["self", "url"],
    httptools_impl.HttpToolsProtocol.on_header: ["self", "name", "value"],
    httptools_impl.HttpToolsProtocol.on_body: ["self", "body"],
    httptools_impl.HttpToolsProtocol._should_upgrade: ["self"],
    httptools_impl.HttpToolsProtocol._unsupported_upgrade_warning: ["self"],
    websockets_sansio_impl.WebSocketsSansIOProtocol.handle_cont: ["self", "event"],
    websockets_sansio_impl.WebSocketsSansIOProtocol.send: ["self", "message"],
    websockets_sansio_impl.WebSocketsSansIOProtocol.send_receive_event_to_app: ["self"],
    websockets_sansio_impl.WebSocketsSansIOProtocol.run_asgi: ["self"],
    websockets_sansio_impl.WebSocketsSansIOProtocol.connection_lost: ["self", "exc"],
    uvicorn.Server.startup: ["self", "sockets"],
    uvicorn.Server.shutdown: ["self", "sockets"],
}
"""Methods that ours take the place of."""


def attributes(kind: type) -> set[str]:
    """What objects of a class have: what the class defines, and what its methods set."""
    found = set(dir(kind))
    for each in kind.__mro__:
        try:
            tree = ast.parse(dedent(inspect.getsource(each)))
        except (OSError, TypeError):
            continue  # made by C, or by Python itself
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
        }
        found |= set(getattr(each, "__annotations__", {}))
    return found


def used(own: type, base: str) -> set[str]:
    """The attributes of `base` that a class of ours names."""
    tree = ast.parse(inspect.getsource(own))
    return {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == base
    } | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and base == "self" and ast.unparse(node.value) == "super()"
    }


def own_names(own: type) -> set[str]:
    source = inspect.getsource(own)
    return set(vars(own)) | set(re.findall(r"\bself\.(_\w+)(?:, self\._\w+)* = ", source))


CASES = [(own, base, kind) for own, bases in USED.items() for base, kind in bases.items()]


@pytest.mark.parametrize(("own", "base", "kind"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_what_we_use_is_there(own: type, base: str, kind: type) -> None:
    ours = own_names(own) if base == "self" else set()
    # What is overridden must be there as well: a method that uvicorn no longer calls is no limit any more.
    names = used(own, base) - ours if base != "self" else (used(own, base) - ours) | overridden(own)
    missing = names - attributes(kind)
    assert not missing, (
        f"uvicorn {uvicorn.__version__} has no {sorted(missing)} in {kind.__name__}, "
        f"which {own.__module__} uses: see what took their place before the pin is changed."
    )


def overridden(own: type) -> set[str]:
    """Methods of ours that call the one they stand for."""
    return {
        name
        for name, method in vars(own).items()
        if inspect.isfunction(method) and f"super().{name}(" in inspect.getsource(method)
    } - {"__init__"}


@pytest.mark.parametrize("method", SIGNATURES, ids=lambda method: method.__qualname__)
def test_what_we_override_is_called_in_the_same_way(method: Any) -> None:
    found = list(inspect.signature(method).parameters)
    assert found == SIGNATURES[method], (
        f"uvicorn {uvicorn.__version__} calls {method.__qualname__} with {found}, not {SIGNATURES[method]}."
    )


def test_uvicorn_is_pinned_to_the_minor_version_that_we_know() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (pin,) = [each for each in project["project"]["dependencies"] if each.startswith("uvicorn")]
    known = re.fullmatch(r"uvicorn==(\d+\.\d+)\.\*", pin)
    assert known, f"{pin}: uvicorn's insides change with a minor version, so the pin names one."
    assert uvicorn.__version__.startswith(f"{known[1]}."), (
        f"uvicorn {uvicorn.__version__} is installed, and the service is written for {known[1]}."
    )


def test_an_attribute_that_is_gone_is_named() -> None:
    class Bare:
        pass

    with pytest.raises(AssertionError, match=r"has no \[.*'body'.*\] in Bare, which cubicle\.http_api\.uvicorn_http"):
        test_what_we_use_is_there(uvicorn_http.HttpConnection, "self.cycle", Bare)
