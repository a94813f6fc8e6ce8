"""What the first bytes of an image say: its kind and its size in pixels. Nothing is decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Kind and pixel size; (0, 0) when the header does not tell."""

    kind: str
    width: int
    height: int

    @property
    def media_type(self) -> str:
        return f"image/{self.kind}"


def read_header(start: bytes) -> ImageHeader | None:
    """The header at the start of these bytes; None when they are no image of a known kind."""
    try:
        return _read(start)
    except (struct.error, IndexError):
        return None


def _read(data: bytes) -> ImageHeader | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return ImageHeader("png", *struct.unpack_from(">II", data, 16))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageHeader("gif", *struct.unpack_from("<HH", data, 6))
    if data.startswith(b"\xff\xd8\xff"):
        return ImageHeader("jpeg", *_jpeg_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ImageHeader("webp", *_webp_size(data))
    if data.startswith(b"BM") and len(data) >= 26 and data[6:10] == bytes(4):
        width, height = struct.unpack_from("<ii", data, 18)
        return ImageHeader("bmp", abs(width), abs(height))
    if data.startswith((b"II*\0", b"MM\0*")):
        return ImageHeader("tiff", 0, 0)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """From the first start-of-frame segment, if it lies within these bytes."""
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return 0, 0
        marker = data[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD9 or marker == 0x01:
            at += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
        case _:
            return 0, 0
