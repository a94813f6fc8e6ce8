"""What is kept on disk of a chat beside its sandbox, and goes with it."""

from __future__ import annotations

from pathlib import Path

from cubicle.agents import budget, live_tokens
from cubicle.browser.frame_store import remove_frames
from cubicle.chat.link_store import LinkStore
from cubicle.egress import quota
from cubicle.journal import anchor, offline, writer
from cubicle.metrics import recent_file
from cubicle.ports import shares
from cubicle.sandbox.service_lock import no_service_of


def budgets_folder(data_dir: Path) -> Path:
    return data_dir / "agents"


def tenant_budgets_folder(data_dir: Path) -> Path:
    return data_dir / "tenants"


def user_budgets_folder(data_dir: Path) -> Path:
    return data_dir / "users"


def agent_runs_folder(data_dir: Path) -> Path:
    return data_dir / "agent-runs"


def egress_folder(data_dir: Path) -> Path:
    return data_dir / "egress"


def port_shares_folder(data_dir: Path) -> Path:
    return data_dir / "ports"


def journal_folder(data_dir: Path) -> Path:
    return data_dir / "journal"


def frames_folder(data_dir: Path) -> Path:
    return data_dir / "frames"


def remove_journal(data_dir: Path, digest: str) -> None:
    """Remove the journal of a chat that is gone for good. A service that runs begins another one."""
    writer.remove_record(journal_folder(data_dir), digest)
    anchor.forget(journal_folder(data_dir), digest)


def note_removal(data_dir: Path, limit: int, digest: str, sandbox: str, reason: str) -> None:
    """Write into the journal of a chat that its sandbox is in the trash. A service that runs notices it, and does that
    itself. `limit`: bytes of a journal; 0: there are none. Blocks. Raises OSError."""
    with no_service_of(data_dir) as alone:
        if alone and limit:
            fields = {"what": "removed", "reason": reason, "sandbox": sandbox}
            offline.append_entry(journal_folder(data_dir) / digest, limit, "lifecycle", fields)


def audit_folder(data_dir: Path) -> Path:
    """It stays when a chat is removed: in place of the chat's id and of what was done in it there are digests."""
    return data_dir / "audit"


def links_folder(data_dir: Path) -> Path:
    return data_dir / "links"


def webhooks_folder(data_dir: Path) -> Path:
    """Not a chat's: what is delivered is forgotten, and dead letters are bounded."""
    return data_dir / "webhooks"


def metrics_folder(data_dir: Path) -> Path:
    return data_dir / recent_file.FOLDER


def remove_records(data_dir: Path, digest: str) -> None:
    """Remove the budget, the live runs, the egress allowance, the links, the shares of ports, the problems and the
    pictures of a chat that was removed, while no service runs."""
    remove_frames(frames_folder(data_dir), digest)
    recent_file.remove_records(metrics_folder(data_dir), digest)
    if links_folder(data_dir).is_dir():  # no service has run yet over chats that were imported
        LinkStore(links_folder(data_dir)).drop(digest)
    shares.remove_record(port_shares_folder(data_dir), digest)
    budget.remove_record(budgets_folder(data_dir), digest)
    live_tokens.remove_record(agent_runs_folder(data_dir), digest)
    quota.remove_record(egress_folder(data_dir) / quota.FOLDER, digest)
