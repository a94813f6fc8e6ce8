"""`cubicle image`: build, list, export and remove sandbox images."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Self

import click
from rich.console import Console
from rich.status import Status
from rich.table import Table

from cubicle import settings
from cubicle.cli.output import show, span
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.images import builder, export, oci_layout
from cubicle.images.store import BuildFailed, BuiltImage, ImageError, ImageStore, Variant
from cubicle.images.users import users

console = Console(stderr=True, highlight=False)


@click.group(invoke_without_command=True)
@click.pass_context
def image(context: click.Context) -> None:
    """Build, list, export and remove the images that sandboxes start from; without a command, list them."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@image.command()
@click.argument("variant", required=False, type=click.Choice([v.value for v in Variant]))
def build(variant: str | None) -> None:
    """Build the image of VARIANT (default: the one that SANDBOX_IMAGE names), unless it is built."""
    begin = time.monotonic()
    with _spoken_errors():
        name = variant or settings.load().sandbox_image
        with console.status(f"{name}: starting") as status, Steps(name, status) as steps:
            base = _built(_store(), name, steps)
    took = time.monotonic() - begin
    said = f"built in {took:.0f} s" if took > 2 else "is built"
    console.print(f"[bold]{name}[/bold] {said}: {base.digest[:12]}, {_size(base.manifest.size)}")
    if not base.has_terminal:
        console.print(
            "note: it has no terminal server, for no archive had ttyd when it was built. "
            f"Once one has: cubicle image rm {base.digest[:12]}, and build it again.",
            soft_wrap=True,
        )


@image.command(name="list")
def list_() -> None:
    """Show the built images, and which of them are in use."""
    with _spoken_errors():
        store = _store()
        used = _used_by(store)
        table = Table(box=None, pad_edge=False)
        for title in ("IMAGE", "VARIANT", "BUILT (UTC)", "AGE", "SIZE", "STATE", "USED BY"):
            table.add_column(title, no_wrap=True, justify="right" if title in ("AGE", "SIZE") else "left")
        for base in store.built():
            known = base.manifest
            built = datetime.fromisoformat(known.built_at)
            table.add_row(
                base.digest[:12],
                known.variant,
                f"{built:%Y-%m-%d %H:%M}",
                span(time.time() - built.timestamp()),
                _size(known.size),
                _state(store, base),
                used(base),
            )
    show(table)


@image.command()
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
def rm(names: tuple[str, ...]) -> None:
    """Remove each IMAGE (a variant or a hash); one that a sandbox stands on, running or stopped, is refused."""
    with _spoken_errors():
        store = _store()
        for base in {base.digest: base for base in [store.resolve(name) for name in names]}.values():
            with console.status(f"removing {base.digest[:12]}"):
                store.remove(base, settings.load().data_dir, sandboxes_by_image)
            click.echo(f"Removed {base.digest[:12]} ({base.manifest.variant}, {_size(base.manifest.size)}).")


@image.command(name="export")
@click.argument("name", metavar="IMAGE")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, not to standard output.",
)
@click.option("--oci", is_flag=True, help="Write an OCI image layout, which registries and Kubernetes nodes take.")
@click.option("--tag", metavar="NAME", help="The image's name with --oci, such as registry.example.net/sandbox:1.")
def export_(name: str, output: Path | None, oci: bool, tag: str | None) -> None:
    """Write IMAGE (a variant or a hash) as a tar for `docker import`, or as an OCI image layout."""
    with _spoken_errors():
        base = _store().resolve(name)
        if output is None and sys.stdout.isatty():
            raise ImageError("A tar does not belong on a terminal; give -o FILE, or pipe it into docker import.")
        tag = tag or f"cubicle-sandbox:{base.manifest.variant}"
        with _output(output) as stream, console.status(f"{name}: exporting"):
            done = oci_layout.write_layout(base, stream, tag) if oci else f"{export.write_tar(base, stream)} entries"
    console.print(f"{done} of {base.digest[:12]} written", soft_wrap=True)
    if output is not None:
        docker = ["docker", "import", *export.docker_changes(base), str(output), tag]
        registry = ["skopeo", "copy", f"oci-archive:{output}", f"docker://{tag}"]
        console.print(shlex.join(registry if oci else docker), soft_wrap=True)


class Steps:
    """Shows a build: a line for each step that is done, with its time, and a spinner for the present one.

    In a log file nothing spins: there the present step is told when it begins, and again while it lasts.
    """

    def __init__(self, title: str, status: Status, every: float = 10.0) -> None:
        self.title = title
        self.status = status
        self.present = ""
        self.begin = time.monotonic()
        self._every = every
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if not console.is_terminal:
            threading.Thread(target=self._remind, name="progress", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def __call__(self, step: str) -> None:
        if step == self.present:
            return
        now = time.monotonic()
        if self.present:
            console.print(f"  {now - self.begin:6.1f} s  {self.present}")
        self.present, self.begin = step, now
        self.status.update(f"{self.title}: {step}")
        if not console.is_terminal:
            console.print(f"            {step} …")

    def _remind(self) -> None:
        while not self._over.wait(self._every):
            console.print(f"  {time.monotonic() - self.begin:6.0f} s  {self.present or 'starting'} …")


def _built(store: ImageStore, name: str, steps: Steps) -> BuiltImage:
    """The image of this name: a variant can be built, what a hash names is there or is not."""
    if name in tuple(Variant):
        return builder.build(store, Variant(name), steps)
    return store.resolve(name)


def _store() -> ImageStore:
    return ImageStore(settings.load().image_dir)


def _state(store: ImageStore, base: BuiltImage) -> str:
    current = base.digest == store.recipe.digest(Variant(base.manifest.variant))
    return ("current" if current else "old") + ("" if base.has_terminal else ", no terminal")


def _used_by(store: ImageStore) -> Callable[[BuiltImage], str]:
    """What the list says of who uses an image."""
    try:
        known = users(store.folder, sandboxes_by_image, settings.load().data_dir)
    except OSError:
        return lambda base: "? (ask as root)"

    def words(base: BuiltImage) -> str:
        count = sum(user.sandboxes[base.digest] for user in known)
        if count:
            return f"{count} sandbox{'es' if count > 1 else ''}"
        return "a service" if any(user.serves and base.digest in user.noted for user in known) else ""

    return words


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


@contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        return
    # A file by this name is a whole export or the one that was there before.
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as stream:
            yield stream
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _spoken_errors() -> Iterator[None]:
    try:
        yield
    except BuildFailed as error:
        for line in error.last_lines:
            console.print(line, style="dim", markup=False)
        raise click.ClickException(str(error)) from None
    except (ImageError, settings.BadSettings) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or 'The image folder'}: {error.strerror}.") from None
