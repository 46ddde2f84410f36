"""How a command ends when something is wrong: sentence, hint, exit code, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import COMMANDS, EXIT_CODES, SIGPIPE_CODE
from paceline.errors import ExitCode
from tests.cli.commands import PACELINE, paceline, python

USAGE = [
    (["trian"], "unknown command 'trian'", "did you mean 'train'?"),
    (["zzz"], "unknown command 'zzz'", f"known: {', '.join(COMMANDS)}"),
    (["--verson"], "unknown option --verson", "did you mean --version?"),
    (["train", "--epoch", "3"], "unknown option --epoch", "did you mean --epochs?"),
    (["train", "--batch-size=3"], "unknown option --batch-size", "did you mean --global-batch?"),
    (["train", "--gpus", "2"], "unknown option --gpus", "did you mean --ranks?"),
    (
        ["train", "--momentum", "0.8"],
        "unknown option --momentum",
        "did you mean --set optim.momentum=VALUE?",
    ),
    (
        ["train", "--train.patience", "2"],
        "unknown option --train.patience",
        "did you mean --set train.patience=VALUE?",
    ),
    (
        ["train", "--xyzzy"],
        "unknown option --xyzzy",
        "`paceline train --help` shows the options",
    ),
    (
        ["train", "--epochs"],
        "--epochs needs a value",
        "a value that begins with '-' is written --epochs=-1",
    ),
    (["train", "--quiet=1"], "--quiet takes no value", "write --quiet alone"),
    (
        ["config", "--format", "yaml"],
        "--format 'yaml' is not one of its choices",
        "choose toml, json",
    ),
    (
        ["train", "a.toml", "b.toml"],
        'unexpected argument "b.toml"',
        "`paceline train --help` shows what it takes",
    ),
    (
        ["train", "a.toml", "train.epochs=3"],
        'unexpected argument "train.epochs=3"',
        "did you mean --set train.epochs=3?",
    ),
    (["train", "seed=3"], "there is no file seed=3", "did you mean --set seed=3?"),
    (["train", "--set", "seed"], "--set \"seed\" has no '='", "write --set seed=VALUE"),
    (
        ["train", "--epochs", "ten"],
        'train.epochs = "ten" is not an integer (--epochs)',
        "write a whole number",
    ),
    (
        ["train", "--ranks", "-1"],
        "parallel.ranks = -1 is too small (--ranks)",
        "give a value of at least 0",
    ),
    (
        ["train", "--device", "gpu"],
        'device = "gpu" is not one of its choices (--device)',
        "choose one of auto, cpu, cuda",
    ),
]


@pytest.mark.parametrize(("line", "what", "hint"), USAGE)
def test_a_wrong_command_line(
    line: list[str], what: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.cli import main

    assert main(line) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {what}\n  hint: {hint}\n")


def test_a_bad_file_ends_the_installed_command_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[train]\nepoch = 3\n")
    for command in ("train", "config"):
        done = paceline(command, "bad.toml", folder=tmp_path)
        what, hint = "unknown setting train.epoch (bad.toml line 2)", "did you mean train.epochs?"
        assert done == (2, "", f"error: {what}\n  hint: {hint}\n")


def test_a_pipe_that_nobody_reads_is_no_error() -> None:
    for arguments in ("config", "--help", "train --help"):
        done = subprocess.run(
            ["bash", "-c", f"{PACELINE} {arguments} | true; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        assert done.stdout in ("141\n", "0\n")  # 0: all was written before the reader left


def test_a_reader_that_left_long_ago() -> None:
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    assert reader.stdin is not None
    done = subprocess.run([str(PACELINE), "config"], stdout=reader.stdin, stderr=subprocess.PIPE)
    reader.stdin.close()
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_under_the_output_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(PACELINE), "config"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the output cannot be written: No space left on device")


def test_an_encoding_without_our_letters_does_not_matter(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(PACELINE), "config", "--data", "imagefolder:/bücher/日本"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0
    assert b"imagefolder:/b\\xfccher/\\u65e5\\u672c" in done.stdout


BROKEN = """
import os, signal, sys, types
from paceline import cli

def run(arguments):
    {body}

sys.modules["broken"] = types.SimpleNamespace(__doc__="", fill=lambda parser: None, run=run)
cli.COMMANDS["broken"] = cli.Command("broken", "")
sys.exit(cli.main(["broken"]))
"""


def test_a_defect_shows_its_traceback_and_says_whose_it_is() -> None:
    done = python(BROKEN.format(body="raise ZeroDivisionError('ours')"))
    assert done.code == 1
    assert "ZeroDivisionError: ours" in done.err
    assert done.err.splitlines()[-1].startswith("error: this is a defect of Paceline")


def test_a_broken_pipe_of_another_kind_is_not_hushed() -> None:
    done = python(BROKEN.format(body="raise BrokenPipeError('to a rank')"))
    assert done.code == 1
    assert "BrokenPipeError: to a rank" in done.err


def test_control_c_before_the_launch() -> None:
    done = python(
        BROKEN.format(body="import time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    )
    assert done == (130, "", "interrupted\n")


def test_the_exit_code_of_a_command_is_passed_on() -> None:
    assert python(BROKEN.format(body="return 75")).code == 75


@pytest.mark.parametrize(
    ("error", "code"), [("UserError", 2), ("RankFailedError", 3), ("DivergedError", 4)]
)
def test_every_error_has_its_exit_code(error: str, code: int) -> None:
    body = f"from paceline import errors; raise errors.{error}('what', 'why')"
    assert python(BROKEN.format(body=body)) == (code, "", "error: what\n  hint: why\n")


def test_no_setting_comes_from_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "config"],
        capture_output=True,
        text=True,
        env={"PACELINE_SEED": "5", "PACELINE_TRAIN_EPOCHS": "5", "PACELINE_CONFIG": "none.toml"},
    )
    assert done.returncode == 0
    assert "changed" not in done.stdout


def test_the_page_on_exit_codes_and_the_help_list_every_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "concepts" / "exit-codes.md"
    listed = re.findall(r"^\| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(code) for code in listed] == [*ExitCode, SIGPIPE_CODE]
    in_help = re.findall(r"(?:^ +|; )(\d+) ", EXIT_CODES, re.MULTILINE)
    assert [int(code) for code in in_help] == list(ExitCode)
