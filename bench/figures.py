"""The figures of the table: what each is, its floor, what others have, and the bar it must meet.

A new figure is a row here and a function of bench/measure.py that puts its samples under the same key.
"""

from __future__ import annotations

from dataclasses import dataclass

FIELD = (
    "isorun 12.8 / 48 · declaw 38 / 226 · Northflank 96 / 189 · Daytona 136 / 705 · E2B 366 / 471 · Modal 471 / 565; "
    "open source on one host: Sandstorm 100, CubeSandbox 129, Docker + gVisor 685, microsandbox 1,100, Kata 3,400"
)
"""Public leaderboard of July 2026: create → `node -v`, p50 ms, one at a time / 100 at once."""
PEER = "open-computer-use: one Docker container a chat, `docker exec` a call; 2 cores, aarch64, idle"


@dataclass(frozen=True)
class Figure:
    """One row. Less is better, unless it says so."""

    key: str
    name: str
    unit: str = "ms"
    floor: str = ""
    """The key of what the machine itself takes for it."""
    peer: float | None = None
    field: float | None = None
    """The best of the field."""
    bar: float | None = None
    bar_p95: float | None = None
    bar_p99: float | None = None
    more: bool = False
    """More is better."""

    def times_better(self, ours: float, theirs: float | None) -> float | None:
        if not theirs or not ours:
            return None
        return ours / theirs if self.more else theirs / ours


FIGURES = (
    Figure("floor_spawn", "floor: the host's own spawn of bash"),
    Figure("floor_run", "floor: a plain runc run of true"),
    Figure("floor_node", "floor: a plain runc run of node -v"),
    Figure("floor_burst", "floor: 100 runc runs of node -v at once"),
    Figure("floor_burst_wall", "floor: 100 runc runs, until the last is done"),
    Figure("warm_call", "warm bash_tool true", floor="floor_spawn", peer=119, bar=3.5),
    Figure("cpu_call", "CPU of the service a warm call", floor="floor_spawn", bar=1.2),
    Figure("parallel", "32 chats in parallel", unit="calls/s", peer=14.2, bar=600, more=True),
    Figure("new_pooled", "new chat from the pool, true", floor="floor_run", peer=474, bar=10),
    Figure("new_cold", "new chat without a pool, true", floor="floor_run", peer=474, bar=60, bar_p95=80),
    Figure("node_one", "new chat, node -v, one at a time", floor="floor_node", field=12.8),
    Figure("burst_cold", "100 new chats at once, node -v", floor="floor_burst", field=48, bar=2000),
    Figure("burst_cold_wall", "100 new chats, until the last is done", floor="floor_burst_wall"),
    Figure("burst_warm", "100 once more, the pool filled again", floor="floor_burst", field=48, bar=400),
    Figure("burst_warm_wall", "100 once more, until the last is done", floor="floor_burst_wall"),
    Figure("burst_failed", "failed calls of these", unit="calls", bar=0),
    Figure("burst_neighbour", "a neighbour's true meanwhile", floor="floor_spawn", bar=50, bar_p99=50),
    Figure("wake", "wake a stopped chat, true", floor="floor_run", bar=60),
    Figure("first_event", "first event of echo; sleep 0.5; echo", peer=2128, bar=100),
    Figure("sleepers", "64 × sleep 2 in parallel (peer: 24)", peer=9313, bar=2300),
    Figure("idle_memory", "memory of an idle sandbox", unit="MB", bar=8),
)
BY_KEY = {figure.key: figure for figure in FIGURES}
