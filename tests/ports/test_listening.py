from __future__ import annotations

import pytest

from cubicle.guest.operations import ListeningPort
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.ports.listening import OpenedPorts, PortReserved, PortRules

pytestmark = pytest.mark.anyio


class Sandbox:
    def __init__(self, *ports: ListeningPort, tells: bool = True) -> None:
        self._ports = ports
        self._tells = tells
        self.asked = 0

    async def ports(self) -> tuple[ListeningPort, ...]:
        self.asked += 1
        if not self._tells:
            raise MachineError(ErrorCode.IO, "no such operation")
        return self._ports


async def test_ports_of_the_sandbox_itself_are_not_opened() -> None:
    sandbox = Sandbox(ListeningPort(port=3128, own=True), ListeningPort(port=8000))
    rules = PortRules()
    await rules.require_open(sandbox, 8000)  # type: ignore[arg-type]
    for port in (3128, 7681, 9222):
        with pytest.raises(PortReserved):
            await rules.require_open(sandbox, port)  # type: ignore[arg-type]


async def test_a_sandbox_that_does_not_tell_which_ports_are_its_own_has_none_opened() -> None:
    with pytest.raises(PortReserved):
        await PortRules().require_open(Sandbox(tells=False), 8000)  # type: ignore[arg-type]


async def test_a_sandbox_is_asked_again_only_when_its_mark_has_changed() -> None:
    sandbox, opened = Sandbox(ListeningPort(port=8000)), OpenedPorts()
    asked = [(1, 1, [8000]), (1, 1, []), (2, 2, []), (None, 3, []), (None, 4, []), (2, 5, []), (2, 5, [])]
    for mark, times, ports in asked:
        seen = await opened.since_last(sandbox, mark)  # type: ignore[arg-type]
        assert ([one.port for one in seen], sandbox.asked) == (ports, times)


async def test_a_sandbox_that_did_not_answer_is_asked_again() -> None:
    sandbox, opened = Sandbox(ListeningPort(port=8000)), OpenedPorts()
    assert await opened.since_last(sandbox, 1)  # type: ignore[arg-type]
    sandbox._tells, sandbox._ports = False, (*sandbox._ports, ListeningPort(port=8001))
    assert not await opened.since_last(sandbox, 2)  # type: ignore[arg-type]
    sandbox._tells = True
    assert [seen.port for seen in await opened.since_last(sandbox, 2)] == [8001]  # type: ignore[arg-type]
