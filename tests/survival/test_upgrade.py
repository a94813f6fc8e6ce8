"""Up to this version and back to the one before it, over the sandboxes that run meanwhile.

The version before is the repository's own, as `git archive` gives it. It runs on the packages that this version has,
so what is shown is that the records, the journal and the guest are understood both ways.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.settings import Settings
from tests.cli.test_drain import body, headers, lines, result, until, words
from tests.cli.test_running import said
from tests.support.process import ServiceProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
BEFORE = "96549b9ddcd5eb828f4296e715541841d53e13ae"
"""The last commit of the version before this one."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before."""
    found = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip("the history of the repository is not here")
    folder: Path = tmp_path_factory.mktemp("before")
    subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)
    return folder / "src"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    settings = Settings(_env_file=None, driver="memory", data_dir=tmp_path / "data")  # type: ignore[call-arg]
    made = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="1", DRAIN_SECONDS="1")
    async with made.running(settings):
        yield made


async def change(service: ServiceProcess, sources: Path | None) -> None:
    """Stop this version and start that of these sources; None for ours."""
    await asyncio.to_thread(service.stop)
    service.prefix = [] if sources is None else ["env", f"PYTHONPATH={sources}"]
    await service.start()
    has_metrics = (await service.client.get("/metrics")).status_code != 404
    assert has_metrics is (sources is None)


async def guest_of(service: ServiceProcess) -> str:
    """When the first process of the sandbox began: another one would have another time."""
    failed, text = await service.bash("one", "stat -c %Y.%i /proc/1; cut -d' ' -f22 /proc/1/stat")
    assert not failed, text
    return text


async def keyed(service: ServiceProcess, key: str) -> asyncio.Task[object]:
    command = f"echo {key} >> ~/runs; sleep 6; echo end-{key} >> ~/runs; echo answer of {key}"
    posted = service.client.post("/mcp", json=body(command), headers=headers("one", **{"Idempotency-Key": key}))
    task: asyncio.Task[object] = asyncio.create_task(posted)

    async def begun() -> bool:
        return key in await lines(service, "one")

    await until(begun)
    return task


async def answered(service: ServiceProcess, key: str) -> str:
    command = f"echo {key} >> ~/runs; sleep 6; echo end-{key} >> ~/runs; echo answer of {key}"
    answer = await service.client.post("/mcp", json=body(command), headers=headers("one", **{"Idempotency-Key": key}))
    return words(result(answer))


@pytest.mark.parametrize("way", ["up and down", pytest.param("down and up", marks=pytest.mark.long)])
async def test_one_version_up_and_down_with_a_command_that_runs(
    service: ServiceProcess, before: Path, way: str, tmp_path: Path
) -> None:
    first, second = (before, None) if way == "up and down" else (None, before)
    await change(service, first)
    await service.bash("one", "echo kept > ~/file")
    assert (await service.client.put("/api/uploads/one/up.txt", content=b"uploaded")).status_code == 201
    guest = await guest_of(service)

    call = await keyed(service, "k1")
    await change(service, second)
    await asyncio.gather(call, return_exceptions=True)
    assert await guest_of(service) == guest
    assert await answered(service, "k1") == "answer of k1\n"

    call = await keyed(service, "k2")
    await change(service, first)
    await asyncio.gather(call, return_exceptions=True)
    assert await guest_of(service) == guest
    assert await answered(service, "k2") == "answer of k2\n"
    assert await answered(service, "k1") == "answer of k1\n"  # from the journal that both wrote

    assert await lines(service, "one") == ["k1", "end-k1", "k2", "end-k2"]
    look = "cat ~/file /mnt/user-data/uploads/up.txt"
    assert await service.bash("one", look) == (False, "kept\nuploaded")
    assert await service.bash("two", "echo new") == (False, "new\n")
    code, text = await asyncio.to_thread(said, tmp_path, "journal", "one", "--verify")
    assert code == 0, text
    data = tmp_path / "data"
    assert list(data.rglob("*.bad-*")) == []
    assert not (data / "lost+found").exists() or not any((data / "lost+found").iterdir())
