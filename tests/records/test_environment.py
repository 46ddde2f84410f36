"""What environment.json says of a machine, and what it must never say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from paceline.records.environment import (
    allowed_variables,
    git_commit,
    without_secrets,
    write_environment,
)
from paceline.records.folder import RunFolder


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


def test_versions_machine_and_command_are_described(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_environment(folder, ["paceline", "train"])
    found = json.loads(folder.environment.read_text())
    assert found["command"] == ["paceline", "train"]
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["machine"]["memory_bytes"] > 2**28
    assert found["hostname"]
    assert found["earlier"] == []
    assert os.listdir(tmp_path) == ["environment.json"]


def test_a_resumed_run_keeps_the_earlier_descriptions(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in range(3):
        write_environment(folder, [f"launch {number}"])
    found = json.loads(folder.environment.read_text())
    assert found["command"] == ["launch 2"]
    assert [earlier["command"] for earlier in found["earlier"]] == [["launch 0"], ["launch 1"]]


def test_a_description_cut_short_does_not_end_a_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.environment.write_text('{"comm')
    write_environment(folder)
    assert json.loads(folder.environment.read_text())["earlier"] == []


def test_no_environment_variable_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hunter2")
    monkeypatch.setenv("TORCH_HOME", "https://me:hunter2@host/models")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    folder = RunFolder(tmp_path)
    write_environment(folder)
    assert "hunter2" not in folder.environment.read_text()
    assert json.loads(folder.environment.read_text())["variables"]["OMP_NUM_THREADS"] == "3"


def test_only_listed_variables_are_recorded() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "HOME": "/home/me",
        "WANDB_KEY": "x",
    }
    assert allowed_variables(given) == {"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--token", "abc"], ["--token", "[not recorded]"]),
        (["--api-key=abc"], ["--api-key=[not recorded]"]),
        (["--set", "x.password = a b"], ["--set", "x.password = [not recorded]"]),
        (["s3://key:abc@host/path"], ["s3://[not recorded]@host/path"]),
        (["https://abc@host"], ["https://[not recorded]@host"]),
        (["--set", "model.tokenizer=gpt", "x@y"], ["--set", "model.tokenizer=gpt", "x@y"]),
    ],
)
def test_secrets_on_the_command_line_are_blanked(given: list[str], shown: list[str]) -> None:
    assert without_secrets(given) == shown


def test_the_commit_of_a_repository(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    assert git_commit(inner) == {"commit": head, "branch": "main"}
    git(repository, "pack-refs", "--all")
    assert git_commit(inner) == {"commit": head, "branch": "main"}
    git(repository, "checkout", "-q", "--detach")
    assert git_commit(inner) == {"commit": head}


def test_the_commit_of_a_worktree(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    head = git(repository, "rev-parse", "HEAD")
    assert git_commit(tmp_path / "side") == {"commit": head, "branch": "side"}


def test_no_repository_and_no_commit_are_no_failure(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert git_commit(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_commit(tmp_path) is None


def test_a_hostile_repository_discloses_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789" * 4 + "\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/../../secret\n")
    assert git_commit(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text("root:x:0:0\n")
    assert git_commit(tmp_path) is None
