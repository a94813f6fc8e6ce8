"""A built image, looked at from inside: everything that docs/image.md promises runs, as the user `assistant`.

What costs seconds is tried in one of the variants that have it; CUBICLE_LONG=1 tries it in each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cubicle import settings
from cubicle.images.store import SUBUID_COUNT, SUBUID_START, BuiltImage, ImageStore, NotBuilt, Variant
from tests.conftest import absent

pytestmark = pytest.mark.oci

Inside = Callable[..., str]


only_slim = pytest.mark.parametrize("base", [Variant.SLIM], indirect=True, scope="module")


def mostly(variant: Variant, *others: Variant) -> pytest.MarkDecorator:
    """In this variant; in the others in the long version."""
    more = [pytest.param(other, marks=pytest.mark.long) for other in others]
    return pytest.mark.parametrize("base", [variant, *more], indirect=True, scope="module")


from_standard_on = pytest.mark.parametrize("base", [Variant.STANDARD, Variant.FULL], indirect=True, scope="module")
mostly_standard = mostly(Variant.STANDARD, Variant.FULL)
mostly_full = mostly(Variant.FULL, Variant.STANDARD)
only_full = pytest.mark.parametrize("base", [Variant.FULL], indirect=True, scope="module")


@pytest.fixture(scope="module", params=Variant)
def base(request: pytest.FixtureRequest) -> BuiltImage:
    try:
        return ImageStore(settings.load().image_dir).resolve(request.param)
    except NotBuilt as error:
        absent(str(error))
        raise


@pytest.fixture(scope="module")
def inside(base: BuiltImage) -> Iterator[Inside]:
    """Runs a command in a container over the image, as in a sandbox: user namespace, no capabilities, only `lo`."""
    folder = Path(tempfile.mkdtemp(prefix="cubicle-base-", dir="/run"))
    folder.chmod(0o711)
    upper, work, root = folder / "upper", folder / "work", folder / "rootfs"
    for path in (upper, work, root):
        path.mkdir()
    os.chown(upper, SUBUID_START, SUBUID_START)
    options = f"lowerdir={base.rootfs},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True, timeout=30)
    try:
        yield lambda command, **env: run(folder, base, command, env)
    finally:
        subprocess.run(["umount", str(root)], check=True, timeout=30)
        shutil.rmtree(folder)


def run(folder: Path, base: BuiltImage, command: str, env: dict[str, str]) -> str:
    (folder / "config.json").unlink(missing_ok=True)
    subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=30)
    config = json.loads((folder / "config.json").read_text())
    config["process"] |= {
        "terminal": False,
        "user": {"uid": 1000, "gid": 1000},
        "args": ["/bin/bash", "-c", command],
        "env": [f"{name}={value}" for name, value in (base.environment | env).items()],
        "cwd": "/home/assistant",
        "capabilities": {},
        "noNewPrivileges": True,
    }
    config["root"] = {"path": "rootfs", "readonly": False}
    ids = [{"containerID": 0, "hostID": SUBUID_START, "size": SUBUID_COUNT}]
    config["linux"] |= {"uidMappings": ids, "gidMappings": ids}
    config["linux"]["namespaces"].append({"type": "user"})
    for mount in config["mounts"]:
        if mount["destination"] == "/dev/shm":
            mount["options"] = [o if not o.startswith("size=") else "size=256m" for o in mount["options"]]
    (folder / "config.json").write_text(json.dumps(config))
    name = f"cubicle-test-{uuid.uuid4().hex[:12]}"
    try:
        done = subprocess.run(
            ["runc", "run", name], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
        )
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["runc", "delete", "--force", name], capture_output=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def test_every_owner_is_in_the_range_and_nothing_is_setuid(base: BuiltImage) -> None:
    wrong = []
    for parent, folders, files in os.walk(base.rootfs):
        for name in folders + files:
            status = os.lstat(os.path.join(parent, name))
            owned = all(SUBUID_START <= i < SUBUID_START + SUBUID_COUNT for i in (status.st_uid, status.st_gid))
            plain = stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            if not owned or not plain or stat.S_IMODE(status.st_mode) & 0o6000:
                wrong.append(os.path.join(parent, name))
    assert wrong == []


def test_the_image_holds_nothing_of_the_host_that_built_it(base: BuiltImage) -> None:
    etc = base.rootfs / "etc"
    assert (etc / "hostname").read_text() == "cubicle\n"
    assert (etc / "resolv.conf").read_text() == ""
    assert "localhost" in (etc / "hosts").read_text()
    assert not (base.rootfs / "cubicle-build").exists()
    assert not list((base.rootfs / "etc").rglob("99mmdebstrap"))
    assert not list((base.rootfs / "var/cache/apt").rglob("*.deb"))


def test_the_manifest_knows_the_packages(base: BuiltImage) -> None:
    assert {"bash", "python3", "ttyd", "git"} <= base.manifest.packages.keys()
    assert base.manifest.packages["ttyd"].startswith("1.")
    assert base.manifest.size > 100_000_000


def test_the_user_is_assistant_at_home(inside: Inside) -> None:
    assert inside("id -un; id -u; id -g; pwd; umask").split() == [
        "assistant",
        "1000",
        "1000",
        "/home/assistant",
        "0022",
    ]
    assert inside("touch ~/x /mnt/user-data/outputs/x && echo written") == "written"
    assert inside("ls -d /mnt/user-data/uploads /mnt/skills /run/cubicle | wc -l") == "3"
    assert inside("touch /mnt/user-data/uploads/x /mnt/skills/x /etc/x 2>/dev/null || echo refused") == "refused"
    assert inside("ls /run/cubicle 2>/dev/null || echo refused") == "refused"


TOOLS_OF_ALL = [
    ("bash --version", "bash, version 5"),
    ("python3 --version", "Python 3.13"),
    ("python --version", "Python 3.13"),
    ("pip --version", "pip 2"),
    ("git --version", "git version 2"),
    ("curl --version", "curl 8"),
    ("rg --version", "ripgrep 1"),
    ("jq --version", "jq-1"),
    ("tmux -V", "tmux 3"),
    ("ttyd --version", "ttyd version 1."),
    ("pdftotext -v 2>&1", "pdftotext version"),
    ("magick --version", "ImageMagick 7"),
    ("zip -v", "Zip 3"),
    ("unzip -v", "UnZip 6"),
    ("file --version", "file-5"),
    ("less --version", "less 6"),
    ("ps --version", "procps"),
    ("fc-list | grep -c .", ""),
    ("make --version", "GNU Make"),
    ("locale charmap 2>/dev/null || python3 -c 'import locale; print(locale.getencoding())'", "UTF-8"),
]
TOOLS_OF_STANDARD = [
    ("node --version", "v24."),
    ("npm --version", "11."),
    ("npx --version", "11."),
    ("chromium --version", "Chromium"),
    ("python3 -c 'import playwright.sync_api; print(1)'", "1"),
    ("node -p 'typeof require(\"playwright-core\").chromium.launch'", "function"),
    (
        "node --input-type=module -e 'import {chromium} from \"playwright\"; console.log(typeof chromium.launch)'",
        "function",
    ),
    ("npm prefix -g", "/home/assistant/.local"),
    ("npm ls -g", "/home/assistant/.local/lib"),
    ("mkdir -p bare && cd bare && npm prefix", "/home/assistant/bare"),
    ("node --input-type=module -e 'import \"nowhere\"' 2>&1 || true", "Cannot find package 'nowhere'"),
]
TOOLS_OF_FULL = [
    ("pandoc --version", "pandoc 3"),
    ("ffmpeg -version", "ffmpeg version 7"),
    ("tesseract --version 2>&1", "tesseract 5"),
    ("python3 -c 'import docx, openpyxl, pptx, pypdf, pandas; print(1)'", "1"),
    ("python3 -c 'import matplotlib.pyplot as p; p.plot([1]); p.savefig(\"a.png\")' && file a.png", "PNG image"),
    (
        "echo Hi | pandoc -o a.docx && soffice --headless --convert-to pdf a.docx >&2 && pdftotext a.pdf -",
        "Hi",
    ),
]


def without_answer(inside: Inside, tools: list[tuple[str, str]]) -> list[str]:
    """What of this fails or does not say what it should, with what it said; all of it in one container."""
    said = inside("\n".join(f"(\n{command}\n); echo; echo 'ended' $?" for command, _ in tools))
    ends = re.split(r"^ended (\d+)$", said, flags=re.MULTILINE)
    found = list(zip(tools, ends[::2], ends[1::2], strict=False))
    assert len(found) == len(tools), said
    return [f"{command}: {code} {text}" for (command, answer), text, code in found if answer not in text or code != "0"]


def test_the_tools_of_every_variant_run(inside: Inside) -> None:
    assert without_answer(inside, TOOLS_OF_ALL) == []


@from_standard_on
def test_the_tools_of_standard_run(inside: Inside) -> None:
    assert without_answer(inside, TOOLS_OF_STANDARD) == []


@only_full
def test_the_tools_of_full_run(inside: Inside) -> None:
    assert without_answer(inside, TOOLS_OF_FULL) == []


@only_slim
def test_slim_has_no_browser_and_no_node(inside: Inside) -> None:
    assert inside("command -v node chromium cubicle-browser || echo none") == "none"


WHEEL = """
import zipfile
with zipfile.ZipFile("tiny_thing-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tiny_thing.py", "def main(): print('tiny')")
    info = "tiny_thing-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: tiny-thing\\nVersion: 1.0\\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(info + "entry_points.txt", "[console_scripts]\\ntiny = tiny_thing:main\\n")
    wheel.writestr(info + "RECORD", "")
"""


WAYS = ("pip install", "pip install --user", "python3 -m venv v && v/bin/pip install")


@pytest.mark.parametrize(
    ("base", "how"),
    [
        pytest.param(variant, how, marks=[] if at == place else pytest.mark.long)
        for at, variant in enumerate(Variant)
        for place, how in enumerate(WAYS)
    ],
    indirect=["base"],
    scope="module",
)
def test_pip_installs_for_the_user_and_into_an_environment(inside: Inside, how: str) -> None:
    command = f"""
        cd "$(mktemp -d)" && cat >wheel.py <<'END' && python3 wheel.py &&
{WHEEL}
END
        {how} --quiet --no-index ./tiny_thing-1.0-py3-none-any.whl && PATH=$PWD/v/bin:$PATH tiny"""
    assert inside(command).splitlines()[-1] == "tiny"


@mostly_full
def test_npm_installs_a_command_for_the_user(inside: Inside) -> None:
    package = '{"name": "tiny-node", "version": "1.0.0", "bin": "tiny.js"}'
    script = '#!/usr/bin/env node\\nconsole.log("tiny")\\n'
    command = f"""mkdir t && cd t && echo '{package}' >package.json && printf '{script}' >tiny.js &&
        npm pack --silent >/dev/null && npm install --silent --offline -g ./tiny-node-1.0.0.tgz && tiny-node"""
    assert inside(command).splitlines()[-1] == "tiny"


DRIVE = """
import os, subprocess, time
from playwright.sync_api import sync_playwright
start = lambda: subprocess.run(["bash", "-c", "cubicle-browser"], capture_output=True, text=True, check=True).stdout
first, second = start(), start()
assert first == second == "http://127.0.0.1:9222\\n", (first, second)
with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp(first.strip(), timeout=120_000)
    page = browser.contexts[0].pages[0]
    page.set_default_timeout(120_000)
    page.goto("data:text/html,<title>seen</title><h1>hello</h1>")
    page.screenshot(path="shot.png")
    print(page.title(), page.evaluate("innerWidth"))
print(os.path.getsize("shot.png") > 1000)
"""


@mostly_standard
def test_the_browser_starts_once_and_playwright_drives_it(inside: Inside) -> None:
    assert inside(f"cat >drive.py <<'END'\n{DRIVE}\nEND\npython3 drive.py").split() == ["seen", "1280", "True"]


@mostly_full
def test_the_browser_starts_again_over_the_locks_of_another_host(inside: Inside) -> None:
    lock = "mkdir -p ~/.config/cubicle-browser && ln -sfn otherhost-1 ~/.config/cubicle-browser/SingletonLock"
    assert inside(f"{lock} && cubicle-browser") == "http://127.0.0.1:9222"


DOWNLOAD = """
import http.server, os, subprocess, threading, time, urllib.request
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Disposition", "attachment; filename=report.bin")
        self.end_headers()
        self.wfile.write(b"content")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = subprocess.run(["cubicle-browser"], capture_output=True, text=True, check=True).stdout.strip()
ask = urllib.request.Request(address + "/json/new?http://127.0.0.1:8000/", method="PUT")
urllib.request.urlopen(ask, timeout=60).read()
end = time.monotonic() + 60
while not os.path.exists("/mnt/user-data/outputs/report.bin") and time.monotonic() < end:
    time.sleep(0.05)
print(open("/mnt/user-data/outputs/report.bin").read())
"""


@mostly_full
def test_what_the_browser_downloads_lands_in_outputs(inside: Inside) -> None:
    assert inside(f"cat >get.py <<'END'\n{DOWNLOAD}\nEND\npython3 get.py").endswith("content")


@mostly_standard
@pytest.mark.parametrize("launch", ["launch()", 'launch(channel="chromium")'])
def test_a_plain_launch_of_playwright_finds_the_browser(inside: Inside, launch: str) -> None:
    code = f"from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.{launch}.version)"
    assert inside(f"python3 -c '{code}'").count(".") == 3
