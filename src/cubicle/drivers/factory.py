"""Which driver the settings mean: asked by the service, and by commands that do without the service's other parts."""

from __future__ import annotations

from cubicle.drivers.memory import MemoryDriver
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Driver, SandboxLimits
from cubicle.sandbox.free_space import FreeSpace
from cubicle.settings import DriverName, Settings


def make_driver(settings: Settings, space: FreeSpace | None = None) -> Driver:
    """The driver that the settings name; only this module knows which there are."""
    match settings.driver:
        case DriverName.MEMORY:
            return MemoryDriver(settings.data_dir, own_network=True)
        case DriverName.DOCKER:
            from cubicle.drivers.docker.driver import DockerDriver  # takes a quarter of a second to import
            from cubicle.drivers.docker.engine import EngineAddress

            return DockerDriver(
                settings.data_dir,
                ImageStore(settings.image_dir),
                settings.sandbox_image,
                limits=make_limits(settings),
                runtime=settings.docker_runtime,
                address=EngineAddress(settings.docker_host, settings.docker_cert_path),
                agents=settings.image_dir / "agents",
                read_only=settings.docker_read_only,
            )
        case DriverName.OCI:
            return OciDriver(
                settings.data_dir,
                ImageStore(settings.image_dir),
                settings.sandbox_image,
                SUBUID_START,
                limits=make_limits(settings),
                runtime=settings.oci_runtime,
                transparent=settings.egress_captive,
                agents=settings.image_dir / "agents",
                free_space=space or make_free_space(settings),
            )


def make_limits(settings: Settings) -> SandboxLimits:
    return SandboxLimits(
        settings.sandbox_memory_mb * 1024**2,
        settings.sandbox_cpus,
        settings.sandbox_pids,
        settings.sandbox_disk_mb * 1024**2,
    )


def make_free_space(settings: Settings) -> FreeSpace:
    return FreeSpace(settings.data_dir, settings.min_free_mb * 1024**2)


def make_chat_index(settings: Settings) -> ChatIndex:
    return ChatIndex(settings.data_dir / "chats")
