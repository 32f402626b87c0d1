"""Where a run came from: versions, host, time, and the commit of the user's repository."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

PACKAGES = ("gap-dynamics", "torch", "lightning", "numpy", "scipy", "h5py")


def provenance() -> dict[str, Any]:
    """Return package versions, host, platform, start time (UTC), command, and the git commit of the working folder."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "command": sys.argv,
        "versions": versions,
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    def ask(*arguments: str) -> str:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
        return result.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "uncommitted_changes": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        # No git, no repository, or no commit yet: a run is not worth less for it.
        return None
