from __future__ import annotations

import pytest

from cubicle.guest.operations import ListeningPort
from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import MachineError
from cubicle.ports.listening import PortReserved, PortRules

pytestmark = pytest.mark.anyio


class Sandbox:
    def __init__(self, *ports: ListeningPort, tells: bool = True) -> None:
        self._ports = ports
        self._tells = tells

    async def ports(self) -> tuple[ListeningPort, ...]:
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
