"""Which driver the settings mean: asked by the service, and by commands that do without the service's other parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cubicle.drivers.memory import MemoryDriver
from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.machine.errors import Unusable
from cubicle.members.records import MemberRecords
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.driver import Driver, SandboxLimits
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.initial_files import InitialSource, nothing
from cubicle.settings import DriverName, Settings

if TYPE_CHECKING:
    from cubicle.drivers.kubernetes.cluster import Cluster


def make_driver(settings: Settings, space: FreeSpace | None = None, initial: InitialSource = nothing) -> Driver:
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
                network=settings.docker_network,
            )
        case DriverName.KUBERNETES:
            return make_kubernetes_driver(settings)
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
                initial=initial,
            )


def cluster_finder(settings: Settings) -> Callable[[], Cluster]:
    """Finds the cluster that the settings mean; raises Unusable when it is called."""
    from cubicle.drivers.kubernetes.cluster import find_cluster

    host, port = settings.kubernetes_service_host, settings.kubernetes_service_port
    return lambda: find_cluster(settings.kubeconfig, host, port, settings.kubernetes_namespace)


def make_kubernetes_driver(settings: Settings) -> Driver:
    from cubicle.drivers.kubernetes.driver import KubernetesDriver  # takes a while to import, too
    from cubicle.drivers.kubernetes.template import PodTerms, read_extra

    if not settings.kubernetes_image:
        raise Unusable("DRIVER=kubernetes needs KUBERNETES_IMAGE: the sandbox image in a registry.")
    return KubernetesDriver(
        cluster_finder(settings),
        settings.kubernetes_key_file or settings.data_dir / "kubernetes" / "guest-key.pem",
        PodTerms(
            instance=settings.kubernetes_instance,
            image=settings.kubernetes_image,
            limits=make_limits(settings),
            isolation=settings.kubernetes_isolation,
            files=settings.kubernetes_files,
            claim=settings.kubernetes_claim,
            storage_class=settings.kubernetes_storage_class,
            extra=read_extra(settings.kubernetes_pod_template),
        ),
        pool_size=settings.pool_size,
    )


def make_lease_records(settings: Settings, slot: int, address: str) -> MemberRecords:
    """Where replicas on the cluster of these settings find each other."""
    from cubicle.drivers.kubernetes.members import LeaseRecords

    if settings.driver is not DriverName.KUBERNETES:
        raise Unusable("REPLICAS: several replicas need DRIVER=kubernetes; on one host set WORKERS.")
    finder, instance = cluster_finder(settings), settings.kubernetes_instance
    return LeaseRecords(finder, instance, slot=slot, address=address, port=settings.member_port)


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
