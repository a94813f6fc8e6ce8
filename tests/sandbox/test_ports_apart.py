"""The service listens on several ports of a sandbox's loopback: no two parts want the same one."""

from __future__ import annotations

from cubicle.agents import gateway
from cubicle.egress import environment

TERMINAL, DEVTOOLS = 7681, 9222


def test_no_two_parts_listen_on_one_port() -> None:
    ports = [TERMINAL, DEVTOOLS, gateway.PORT]
    ports += [value for name, value in vars(environment).items() if name.endswith("_PORT")]
    assert len(ports) == len(set(ports))
