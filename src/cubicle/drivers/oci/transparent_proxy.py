"""The transparent proxy: in a sandbox's own namespace every way leads to the egress proxy.

Programs that heed the proxy variables do not need it. For the others, every address is local (AnyIP), and what is not
loopback is redirected to the port on which the guest listens for the proxy. A sandbox cannot change it: it has no
capability over its network.
"""

from __future__ import annotations

import shutil
import subprocess

from cubicle.egress.environment import NAMES_PORT, TRANSPARENT_PORT

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_LIMIT = 60
_RULES = f"""
table ip cubicle {{
    chain output {{
        type nat hook output priority -100; policy accept;
        ip daddr != 127.0.0.0/8 meta l4proto tcp redirect to :{TRANSPARENT_PORT}
        ip daddr != 127.0.0.0/8 udp dport 53 redirect to :{NAMES_PORT}
    }}
}}
"""
_SCRIPT = f"""
ip link set lo up
ip route replace local default dev lo
nft -f - <<'END'
{_RULES}
END
"""


def available() -> bool:
    """Whether this host has the programs that it takes."""
    return all(shutil.which(name, path=_PATH) for name in ("nft", "ip", "nsenter"))


def capture(pid: int) -> str:
    """Set the network of this sandbox up; the words of the program that failed, or nothing. It blocks."""
    try:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-ec", _SCRIPT],
            env={"PATH": _PATH},
            capture_output=True,
            timeout=_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip()[-300:]
