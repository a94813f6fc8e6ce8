"""Built sandbox images: one folder each, named by a hash over everything that went into it.

IMAGE_DIR/
├── bases/<hash>/          rootfs/ and manifest.json; appears whole by a rename, is never edited
├── building/<hash>.<n>/   a build at work, or what a crash left of one
├── locks/<hash>           held while that image is built
├── logs/<hash>.log        what the last build of it printed
└── users/                 who uses which (users.py)

Unusable
└── ImageError
    ├── UnknownImage       no variant and no built image has this name
    ├── NotBuilt           the variant is known, and nobody built it yet
    ├── ImageInUse         it cannot be removed: sandboxes stand on it
    ├── ToolMissing        this host lacks what a build needs
    └── BuildFailed        a build ended early; it has the log and its last lines
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import cubicle
from cubicle import durable, record
from cubicle.images.users import Count, leave_note, users
from cubicle.machine.errors import Unusable
from cubicle.record import BadRecord

SUBUID_START = 0x7000_0000
"""First host id of the range that all sandboxes share; no systemd or subuid default reaches up to it."""

SUBUID_COUNT = 65536

LAYOUT = 1
"""Part of every hash: raised when the builder itself makes something else out of the same inputs."""


log = logging.getLogger(__name__)

_YOUNG_SECONDS = 86400.0
_MAX_MANIFEST = 4 * 1024**2


class ImageError(Unusable):
    """An image cannot be had; the message says what fixes it."""


class UnknownImage(ImageError):
    """No variant and no built image has this name."""


class NotBuilt(ImageError):
    """Nobody built this variant yet."""


class ImageInUse(ImageError):
    """Sandboxes stand on this image, or a service makes them from it."""


class ToolMissing(ImageError):
    """This host lacks what a build needs."""


class BuildFailed(ImageError):
    """A build ended early."""

    def __init__(self, message: str, log: Path, last_lines: list[str]) -> None:
        super().__init__(message)
        self.log = log
        self.last_lines = last_lines


class Variant(StrEnum):
    """The images that there are, each with all of the one before it."""

    SLIM = "slim"
    STANDARD = "standard"
    FULL = "full"

    @property
    def parts(self) -> tuple[Variant, ...]:
        """This variant and all that it contains, smallest first."""
        order = tuple(Variant)
        return order[: order.index(self) + 1]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a built image."""

    variant: str
    architecture: str
    built_at: str
    seconds: float
    size: int
    packages: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises BadRecord."""
        fields = record.read(path, _MAX_MANIFEST)
        packages = fields.fields("packages").values
        return cls(
            fields.text("variant"),
            fields.text("architecture"),
            fields.text("built_at"),
            fields.number("seconds"),
            fields.whole("size"),
            {name: str(version) for name, version in packages.items()},
        )


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A built image."""

    digest: str
    folder: Path
    manifest: Manifest

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    @property
    def has_terminal(self) -> bool:
        """Whether the terminal server is in it; where no archive had it, the image was built without."""
        return "ttyd" in self.manifest.packages

    @property
    def environment(self) -> dict[str, str]:
        """What /etc/environment of the image says: the base environment of every command in it."""
        lines = (self.rootfs / "etc/environment").read_text().splitlines()
        pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        return {pair[0]: pair[1] for pair in pairs}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The folder `image/`, for one architecture: what images are made from."""

    folder: Path
    architecture: str

    @classmethod
    def here(cls) -> Recipe:
        """The recipe that ships with this program, for this machine."""
        package = Path(cubicle.__file__).resolve().parent
        shipped = package / "image_files"
        folder = shipped if shipped.is_dir() else package.parents[1] / "image"
        names = {"aarch64": "arm64", "x86_64": "amd64"}
        return cls(folder, names.get(platform.machine(), platform.machine()))

    def packages(self, variant: Variant) -> list[str]:
        """Debian packages of a variant."""
        lists = [self.folder / "packages" / f"{part}.txt" for part in variant.parts]
        lines = [line.strip() for file in lists for line in file.read_text().splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    def wheels(self, variant: Variant) -> list[str]:
        """Names of the files in wheels/ that a variant uses."""
        names = [f"{part}.txt" for part in variant.parts]
        return [name for name in names if (self.folder / "wheels" / name).exists()]

    def digest(self, variant: Variant) -> str:
        """The name of the image that these inputs give; the package index of the day is not one of them."""
        unused = {f"{other}.txt" for other in Variant if other not in variant.parts}
        total = hashlib.sha256(f"{LAYOUT} {variant} {self.architecture} {SUBUID_START}\n".encode())
        for file in sorted(self.folder.rglob("*")):
            name = file.relative_to(self.folder)
            if not file.is_file() or "__pycache__" in name.parts:
                continue
            if name.parts[0] in ("packages", "wheels") and name.name in unused:
                continue
            total.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()


class ImageStore:
    """The folder of built images, shared by all services of the machine."""

    def __init__(self, folder: Path, recipe: Recipe | None = None) -> None:
        self.folder = folder
        self.recipe = recipe or Recipe.here()

    @property
    def bases(self) -> Path:
        return self.folder / "bases"

    def built(self) -> list[BuiltImage]:
        """Every built image, newest first."""
        found = [self._look(entry.name) for entry in self.bases.iterdir()] if self.bases.is_dir() else []
        return sorted((b for b in found if b), key=lambda b: (b.manifest.built_at, b.digest), reverse=True)

    def _look(self, digest: str) -> BuiltImage | None:
        """One of many: that it cannot be read is no reason not to use the others."""
        try:
            return self._open(digest)
        except ImageError as error:
            log.warning("%s", error)
            return None

    def resolve(self, name: str) -> BuiltImage:
        """The image that a variant stands for today, or that a hash or the beginning of one names."""
        if name in tuple(Variant):
            if base := self._open(self.recipe.digest(Variant(name))):
                return base
            raise NotBuilt(f"The sandbox image {name} is not built; build it with: cubicle image build {name}")
        names = os.listdir(self.bases) if self.bases.is_dir() else []
        matches = [digest for digest in names if len(name) >= 4 and digest.startswith(name)]
        if len(matches) == 1 and (found := self._open(matches[0])):
            return found
        if len(matches) > 1:
            raise UnknownImage(f"{name} is the beginning of {len(matches)} images; give more of the hash.")
        raise UnknownImage(
            f"There is no sandbox image {name!r}: see `cubicle image list`, or build {', '.join(Variant)}."
        )

    def log(self, digest: str) -> Path:
        """Where the build of this image writes what it prints."""
        return self.folder / "logs" / f"{digest[:16]}.log"

    def make(
        self, variant: Variant, fill: Callable[[Path], Manifest], on_wait: Callable[[], None] = lambda: None
    ) -> BuiltImage:
        """The image of a variant; `fill` makes rootfs/ in the folder that it is given, if there is none yet.

        Builds of one image take turns: who comes second finds it made. `on_wait` is called before a wait.
        """
        digest = self.recipe.digest(variant)
        if base := self._open(digest):
            return base
        with self._lock(digest, on_wait):
            if base := self._open(digest):
                return base
            for stale in self._building.glob(f"{digest}.*"):
                shutil.rmtree(stale)
            folder = self._workspace(digest)
            try:
                manifest = fill(folder)
                if self.recipe.digest(variant) != digest:
                    raise ImageError("The recipe changed while the image was built; build it again.")
                record.write(folder / "manifest.json", asdict(manifest), mode=0o644)
                durable.make_folder(self.bases, mode=0o755)
                folder.chmod(0o755)
                durable.sync_file_system(folder)
                durable.move(folder, self.bases / digest)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return BuiltImage(digest, self.bases / digest, manifest)

    def collect(self, in_use: Collection[str]) -> list[BuiltImage]:
        """Remove the images that no chat uses and that no variant stands for today; says which."""
        current = {self.recipe.digest(variant) for variant in Variant}
        gone = [b for b in self.built() if b.digest not in in_use and b.digest not in current]
        for base in gone:
            self._bury(base)
        return gone

    def settle(self, data_dir: Path, in_use: Collection[str], count: Count) -> list[BuiltImage]:
        """Note which images the service of this data folder uses, and collect those that no service uses."""
        leave_note(self.folder, data_dir, in_use)
        known = users(self.folder, count, data_dir)
        if any(user.unreadable for user in known):
            return []  # who uses what is not known: all stays
        used = {image for user in known for image in user.images}
        young = {base.digest for base in self.built() if base.folder.stat().st_mtime > time.time() - _YOUNG_SECONDS}
        return self.collect(used | young)

    def remove(self, base: BuiltImage, data_dir: Path, count: Count) -> None:
        """Remove one image. Raises ImageInUse if a sandbox of any service, or of this data folder, stands on it."""
        with self._lock(base.digest):
            self._refuse_if_used(base, data_dir, count)
            self._bury(base)

    def claim(self, name: str, data_dir: Path) -> None:
        """Note that the service of this data folder starts with this image: from now on `remove` refuses it."""
        with self._lock(self.resolve(name).digest):
            leave_note(self.folder, data_dir, {self.resolve(name).digest})

    def _refuse_if_used(self, base: BuiltImage, data_dir: Path, count: Count) -> None:
        for user in users(self.folder, count, data_dir):
            if number := user.sandboxes[base.digest]:
                stand = f"{number} sandboxes stand" if number > 1 else "1 sandbox stands"
                raise ImageInUse(
                    f"{stand} on the image {base.digest[:12]}, running, stopped or in the trash, in "
                    f"DATA_DIR={user.data_dir}: a disk holds only what differs from it. Remove them first: "
                    "`cubicle ps` lists them, `cubicle rm --now` removes."
                )
            if user.unreadable:
                raise ImageInUse(
                    f"Sandboxes of DATA_DIR={user.data_dir} do not say which image they stand on: their records "
                    f"cannot be read. `cubicle doctor` with that DATA_DIR says more; until then no image is removed."
                )
            if user.serves and base.digest in user.noted:
                raise ImageInUse(
                    f"The service that runs over DATA_DIR={user.data_dir} has started with the image "
                    f"{base.digest[:12]} in use. Stop it first, or start it again with another SANDBOX_IMAGE."
                )

    def _bury(self, base: BuiltImage) -> None:
        """Out of sight first: a half-removed image is never found."""
        grave = self._workspace(base.digest)
        base.folder.rename(grave / "old")
        shutil.rmtree(grave)

    @property
    def _building(self) -> Path:
        return self.folder / "building"

    def _workspace(self, digest: str) -> Path:
        self._building.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{digest}.", dir=self._building))

    def _open(self, digest: str) -> BuiltImage | None:
        folder = self.bases / digest
        try:
            return BuiltImage(digest, folder, Manifest.read(folder / "manifest.json"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except BadRecord:
            raise ImageError(
                f"The manifest of image {digest[:12]} cannot be read; remove its folder and build it again."
            ) from None

    @contextmanager
    def _lock(self, digest: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / digest).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
