"""Help answers at once, without torch, and says what there is."""

from __future__ import annotations

import resource
import statistics
import subprocess

import pytest

from paceline.cli import COMMANDS
from paceline.config.flags import FLAGS
from tests.cli.commands import PACELINE, paceline, python

LIMIT_S = 0.150
QUESTIONS = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
HEAVY = {"torch", "torchvision", "numpy", "rich", "sklearn"}


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_help_answers_in_time(question: list[str]) -> None:
    medians = []
    for _ in range(4):  # other work on the machine may spoil a try, a slow import spoils all
        medians.append(statistics.median(seconds_to_answer(question) for _ in range(20)))
        if medians[-1] < LIMIT_S:
            return
    pytest.fail(f"medians of 20: {medians} s")


def seconds_to_answer(question: list[str]) -> float:
    """Of processor time: what a user waits for on a quiet machine, whatever else runs on this one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(PACELINE), *question], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    "line", [*QUESTIONS, ["config"], ["train", "--epoch", "3"], ["train", "no.toml"]], ids=" ".join
)
def test_nothing_heavy_is_imported(line: list[str]) -> None:
    done = python(
        f"import sys; from paceline.cli import main; main({line}); "
        f"print('HEAVY', *({HEAVY} & set(sys.modules)))"
    )
    assert done.out.splitlines()[-1] == "HEAVY"


def test_help_without_the_settings_machinery() -> None:
    done = python(
        "import sys; from paceline.cli import main; main(['train', '--help']); "
        "print('HEAVY', *({'dataclasses', 'tomllib', 'paceline.config.schema'} & set(sys.modules)))"
    )
    assert done.out.splitlines()[-1] == "HEAVY"


def test_top_level_help_lists_every_command() -> None:
    done = paceline("--help")
    assert done.code == 0
    assert all(name in done.out and command.help in done.out for name, command in COMMANDS.items())
    assert "exit codes:" in done.out
    assert paceline().out == done.out


def test_train_help_names_flags_keys_examples_and_exit_codes() -> None:
    done = paceline("train", "--help")
    assert done.code == 0
    text = " ".join(done.out.split())
    for name, flag in FLAGS.items():
        assert f"{name} {flag.metavar} {flag.key}: " in text
    assert done.out.index("--max-minutes") < done.out.index("examples:")
    assert "75 stopped and saved" in text


def test_every_command_has_help() -> None:
    for name in COMMANDS:
        done = paceline(name, "--help")
        assert (done.code, done.err) == (0, "")
        assert "examples:" in done.out


def test_module_and_command_are_the_same() -> None:
    assert python("import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('paceline')")
    done = python(
        "import runpy, sys; sys.argv[1:] = ['config', '--help'];"
        "runpy.run_module('paceline', run_name='__main__')"
    )
    assert done.out == paceline("config", "--help").out
