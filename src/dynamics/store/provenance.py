"""Where a run came from: versions, host, time, the commit of the user's repository; in terms that JSON can hold."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import numpy as np

_DEEPEST = 20
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


def plain(value: Any, depth: int = 0) -> Any:
    """Return what JSON can hold of a value: a run is not worth less for a strange hyperparameter."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
