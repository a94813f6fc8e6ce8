"""`cubicle doctor` tells what is missing, what fixes it, and exits accordingly."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from cubicle.cli.doctor import doctor, port
from cubicle.drivers.common.checks import Verdict
from cubicle.drivers.oci import checks, host
from cubicle.drivers.oci.checks import HostSubject
from cubicle.drivers.oci.driver import RUN_DIR
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.isolation import runner, startup_check
from cubicle.isolation.exhaustion import RESOURCES
from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import load
from tests.drivers.makers import some_base
from tests.support import remains


@pytest.fixture
def subject(tmp_path: Path) -> HostSubject:
    store = ImageStore(load().image_dir)
    return HostSubject(tmp_path / "not" / "yet", store, "slim", "", SUBUID_START, RUN_DIR, 1024**2)


def ask(monkeypatch: pytest.MonkeyPatch, **settings: str) -> tuple[int, str]:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    answer = CliRunner().invoke(doctor, env={"COLUMNS": "300"})
    assert "Traceback" not in answer.output
    return answer.exit_code, answer.output


def test_without_root_it_says_what_to_run_and_fails(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, output = ask(monkeypatch, DRIVER="oci")
    assert code == 1
    assert "sudo cubicle doctor" in output


def test_an_image_that_is_not_built_names_the_command_that_builds_it(monkeypatch, tmp_path):
    code, output = ask(monkeypatch, DRIVER="oci", IMAGE_DIR=str(tmp_path), SANDBOX_IMAGE="slim")
    assert code == 1
    assert "cubicle image build slim" in output


def test_a_driver_without_needs_is_fine(monkeypatch):
    code, output = ask(monkeypatch, DRIVER="memory", PORT="0")
    assert code == 0
    assert "can run here" in output


def test_a_bad_setting_is_one_sentence(monkeypatch):
    code, output = ask(monkeypatch, PORT="many")
    assert code == 1
    assert "PORT" in output


def test_a_port_of_another_program_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        check = port(load(host="127.0.0.1", port=server.getsockname()[1], data_dir=tmp_path))
    assert check.verdict is Verdict.WEAK
    assert "taken by another program" in check.found


def test_a_service_that_has_the_port_and_does_not_answer_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("cubicle.cli.doctor._HEALTH_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with only_service_of(tmp_path, f"127.0.0.1:{number}"):
            check = port(load(host="127.0.0.1", port=number, data_dir=tmp_path))
    assert check.verdict is Verdict.WEAK
    assert "does not answer" in check.found


def test_a_service_at_another_port_has_not_taken_this_one(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, only_service_of(tmp_path, "127.0.0.1:1"):
        check = port(load(host="127.0.0.1", port=server.getsockname()[1], data_dir=tmp_path))
    assert "taken by another program" in check.found


@pytest.mark.oci
async def test_every_check_leaves_the_host_as_it_was(monkeypatch, subject, tmp_path):
    monkeypatch.setattr(checks.secrets, "token_hex", lambda size: "of-this-test")  # type: ignore[attr-defined]
    found = {check.name: check for check in await checks.run(subject)}
    assert found["OCI runtime"].verdict is Verdict.GOOD
    assert found["overlay file system"].verdict is Verdict.GOOD
    assert found["disk limit"].verdict is not Verdict.MISSING
    assert found["own user ids"].verdict is not Verdict.MISSING
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not (RUN_DIR / "doctor-of-this-test").exists()
    assert remains.cgroups("cubicle/doctor-of-this-test") == []


@pytest.mark.oci
async def test_a_runtime_that_is_not_there_names_the_package(subject):
    subject = HostSubject(subject.data_dir, subject.bases, "slim", "nosuchruntime", 1, subject.run_dir, 1)
    check = await checks.runtime(subject)
    assert (check.verdict, check.fix) == (Verdict.MISSING, host.INSTALL)


def test_a_missing_controller_is_missing(monkeypatch, subject):
    monkeypatch.setattr(host, "missing_controllers", lambda: ["pids"])
    check = checks.cgroups(subject)
    assert check.verdict is Verdict.MISSING
    assert "pids" in check.found


def test_one_sandbox_that_could_have_all_open_files_is_told(subject):
    many = dataclasses.replace(subject, pids=2**50)
    assert checks.open_files(many).verdict is Verdict.WEAK
    assert "fs.file-max" in checks.open_files(many).fix
    assert checks.open_files(dataclasses.replace(subject, pids=1)).verdict is Verdict.GOOD


def test_a_switched_off_user_namespace_names_the_setting(monkeypatch, subject):
    monkeypatch.setattr(host, "has_user_namespaces", lambda: False)
    assert "sysctl" in checks.user_namespaces(subject).fix


@pytest.mark.oci
def test_a_proof_tries_every_wall_and_is_kept_for_the_service(monkeypatch, tmp_path):
    image = some_base(ImageStore(load().image_dir))
    for name, value in {
        "DRIVER": "oci",
        "DATA_DIR": str(tmp_path),
        "SANDBOX_IMAGE": image.digest,
        "SANDBOX_MEMORY_MB": "256",
        "SANDBOX_PIDS": "64",
        "SANDBOX_DISK_MB": "64",
        "PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    answer = CliRunner().invoke(doctor, ["--prove"], env={"COLUMNS": "200"})
    assert answer.exit_code == 0, answer.output
    assert "ways out tried, none is open" in answer.output
    kept = startup_check.kept(startup_check.file_of(load()))
    assert kept is not None
    assert {"mounts", "guest", "processes", "memory", "disk"} <= {finding.layer for finding in kept.report.findings}
    shared = [finding for finding in kept.report.findings if finding.layer == "shared resources"]
    assert len(shared) == len(RESOURCES)
    assert [finding for finding in shared if finding.verdict is not runner.ProbeVerdict.HOLDS] == []
    startup_check.file_of(load()).unlink()


def test_nothing_can_be_proved_of_the_driver_for_tests(monkeypatch):
    monkeypatch.setenv("DRIVER", "memory")
    monkeypatch.setenv("PORT", "0")
    answer = CliRunner().invoke(doctor, ["--prove"])
    assert answer.exit_code != 0
    assert "no isolation" in answer.output


def test_an_engine_that_does_not_answer_is_said_with_what_mends_it(monkeypatch):
    code, output = ask(monkeypatch, DRIVER="docker", DOCKER_HOST="unix:///nowhere.sock", PORT="0")
    assert code == 1
    assert "No Docker engine answers" in output
    assert "systemctl start docker" in output


@pytest.mark.docker
def test_an_engine_is_looked_into(monkeypatch):
    some_base(ImageStore(load().image_dir))
    code, output = ask(monkeypatch, DRIVER="docker", PORT="0", SANDBOX_IMAGE="slim")
    assert code == 0
    for check in (
        "engine",
        "runtime",
        "guests",
        "image",
        "user namespace",
        "shared resources",
        "cgroups",
        "disk limit",
    ):
        assert check in output


@pytest.mark.docker
def test_a_runtime_or_an_image_that_the_engine_lacks_is_named(monkeypatch):
    code, output = ask(monkeypatch, DRIVER="docker", PORT="0", DOCKER_RUNTIME="kata")
    assert code == 1
    assert "has no runtime kata" in output
    code, output = ask(monkeypatch, DRIVER="docker", PORT="0", DOCKER_RUNTIME="", SANDBOX_IMAGE="never-made")
    assert code == 1
    assert "cubicle image build never-made" in output
