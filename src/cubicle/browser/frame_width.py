"""How large the frames of the live view are: what the widest viewer needs, less while they come too slowly."""

from __future__ import annotations

from collections.abc import Iterable

WIDTHS = (1280, 960, 640)
_SLOW = 0.25
_QUICK = 0.08
_WEIGHT = 0.2
_FRAMES_BEFORE_A_STEP = 12


class FrameWidth:
    """Follows how long viewers take to acknowledge a frame, and steps the width down or up."""

    def __init__(self) -> None:
        self._step = 0
        self._delay = 0.0
        self._frames = 0

    def acknowledged(self, seconds: float) -> None:
        """A viewer had the frame after so long."""
        self._delay += _WEIGHT * (seconds - self._delay)
        self._frames += 1
        if self._frames < _FRAMES_BEFORE_A_STEP:
            return
        if self._delay > _SLOW and self._step + 1 < len(WIDTHS):
            self._move(1)
        elif self._delay < _QUICK and self._step and self._frames > 5 * _FRAMES_BEFORE_A_STEP:
            self._move(-1)

    def _move(self, by: int) -> None:
        self._step += by
        self._frames = 0
        self._delay = (_SLOW + _QUICK) / 2

    def width(self, wanted: Iterable[float]) -> int:
        """The width for viewers of these widths."""
        most = max(wanted, default=float(WIDTHS[0]))
        enough = min((width for width in WIDTHS if width >= most), default=WIDTHS[0])
        return min(enough, WIDTHS[self._step])
