from __future__ import annotations

import subprocess

from dynamics.store import provenance


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_it_names_the_commit_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    assert provenance()["git"] == {"commit": git("rev-parse", "HEAD"), "uncommitted_changes": False}
    (tmp_path / "a").write_text("2")
    assert provenance()["git"]["uncommitted_changes"] is True


def test_without_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance()["git"] is None
    monkeypatch.setenv("PATH", "")
    assert provenance()["git"] is None


def test_it_names_versions_host_and_time():
    found = provenance()
    assert {"python", "gap-dynamics", "torch", "lightning", "numpy", "h5py"} <= set(found["versions"])
    assert found["host"]
    assert found["started"].endswith("+00:00")
