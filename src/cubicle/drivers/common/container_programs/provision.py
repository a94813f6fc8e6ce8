"""Before a sandbox starts: `provision.py FOLDER HOME` makes its folders in the volume, once, with their owners.

The folders belong to root and lie in a folder of root, so commands cannot put a link where this program or the kubelet
looks. What is for one start only is emptied.
"""

from __future__ import annotations

import os
import shutil
import sys

_USER = 1000
_FOLDERS = (
    # name, owner, mode, emptied at each start
    ("home", _USER, 0o755, False),
    ("outputs", _USER, 0o755, False),
    ("uploads", 0, 0o755, False),
    ("skills", 0, 0o755, False),
    ("records", 0, 0o700, False),
    ("tmp", 0, 0o1777, True),
    ("vartmp", 0, 0o1777, True),
)


def provision(volume: str, home: str) -> None:
    for name, owner, mode, emptied in _FOLDERS:
        path = os.path.join(volume, name)
        if emptied and os.path.isdir(path):
            shutil.rmtree(path)
        if os.path.isdir(path):
            continue
        fresh = path + ".new"  # what is under the name is whole
        if os.path.isdir(fresh):
            shutil.rmtree(fresh)
        os.mkdir(fresh)
        if name == "home" and os.path.isdir(home):
            _copy(home, fresh)
        os.chmod(fresh, mode)
        os.chown(fresh, owner, owner)
        os.rename(fresh, path)


def _copy(source: str, target: str) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for folder, folders, files in os.walk(target):
        for name in folders + files:
            os.lchown(os.path.join(folder, name), _USER, _USER)


if __name__ == "__main__":
    provision(sys.argv[1], sys.argv[2])
