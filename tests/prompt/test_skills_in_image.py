"""The examples of the shipped skills in the true image, behind the true walls.

What runs in the standard image runs in the full one, too: that is tried with CUBICLE_LONG=1.
"""

import pytest

from cubicle.chat.links import Links
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.machine.errors import Unusable
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.provision import Provisioner
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import load
from tests.conftest import absent
from tests.prompt.test_skills_shipped import NAMES

pytestmark = [pytest.mark.oci, pytest.mark.timeout(300)]
CHAT = Chat("skills")
WANT_MORE_THAN_STANDARD = {"documents", "slides", "spreadsheets"}
IN_FULL = WANT_MORE_THAN_STANDARD | {"skill-writing"}


@pytest.fixture(scope="module", params=["standard", "full"])
def image(request):
    """A built image: today's, else one of before."""
    variant = request.param
    store = ImageStore(load().image_dir)
    try:
        return store, store.resolve(variant)
    except Unusable:
        built = [base for base in store.built() if base.manifest.variant == variant]
    if built:
        return store, built[0]
    return absent(f"needs a sandbox image: cubicle image build {variant}")


@pytest.fixture(scope="module")
async def machine(image, tmp_path_factory):
    store, base = image
    variant = base.manifest.variant
    folder = tmp_path_factory.mktemp(variant)
    driver = OciDriver(folder / "data", store, base.digest, SUBUID_START)
    library = SkillCatalogue()
    provisioner = Provisioner(library, SystemPrompt(library, Links(b"s" * 32, "http://x", KeyRing({}))))
    async with Fleet(driver, ChatIndex(folder / "ledger"), pool_size=0) as fleet:
        try:
            async with fleet.lease(CHAT) as machine:
                await provisioner.prepare(machine, Caller(CHAT))
                yield machine, variant
        finally:
            await fleet.remove(CHAT)


EXAMPLES = [
    pytest.param(variant, name, marks=pytest.mark.long if variant == "full" and name not in IN_FULL else [])
    for variant in ("standard", "full")
    for name in NAMES
]


@pytest.mark.parametrize(("image", "name"), EXAMPLES, indirect=["image"], scope="module")
async def test_its_example_runs_in_the_image_or_says_what_is_missing(name, machine):
    sandbox, variant = machine
    command = f"python3 /mnt/skills/public/{name}/scripts/example.py ~/{name}"
    end, output = await sandbox.output(command, timeout=240)
    if variant == "standard" and name in WANT_MORE_THAN_STANDARD:
        assert end.code == 3, output.decode()
        assert "pip install" in output.decode()
    else:
        assert end.code == 0, output.decode()
        assert output.decode().splitlines()[-1].startswith("ok ")
