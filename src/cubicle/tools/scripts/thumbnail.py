"""Write a small JPEG or PNG of an image to standard output. Runs in the sandbox: thumbnail.py PATH SIDE BYTES."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PATH, SIDE, MAX_COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LIBRARY = "PIL"
QUALITIES = (85, 70, 55, 40, 25)


def by_pillow() -> Iterator[bytes]:
    Image, ImageOps = (import_module(f"{LIBRARY}.{name}") for name in ("Image", "ImageOps"))

    with Image.open(PATH) as source:
        source.draft("RGB", (SIDE, SIDE))
        picture = ImageOps.exif_transpose(source)
        picture.thumbnail((SIDE, SIDE))
        clear = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
        if clear:
            yield encoded(picture.convert("RGBA"), "PNG", optimize=True)
        flat = Image.new("RGB", picture.size, "white")
        flat.paste(picture.convert("RGBA"), mask=picture.convert("RGBA").getchannel("A"))
        for quality in QUALITIES:
            yield encoded(flat, "JPEG", quality=quality)
        flat.thumbnail((SIDE // 2, SIDE // 2))
        yield encoded(flat, "JPEG", quality=40)


def encoded(picture: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def by_magick(program: str) -> Iterator[bytes]:
    for quality in QUALITIES:
        side = SIDE if quality > 25 else SIDE // 2
        command = [program, PATH + "[0]", "-auto-orient", "-background", "white", "-flatten"]
        command += ["-resize", f"{side}x{side}>", "-quality", str(quality), "jpeg:-"]
        yield subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout


def attempts() -> Iterator[bytes]:
    if find_spec(LIBRARY):
        return by_pillow()
    program = shutil.which("magick") or shutil.which("convert")
    return by_magick(program) if program else sys.exit(3)


for data in attempts():
    if 0 < len(data) <= MAX_COUNT:
        sys.stdout.buffer.write(data)
        break
else:
    sys.exit(4)
