"""What bad settings say: whole messages, word for word, so that a change of one is a decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.errors import UserError

FILES = [
    (
        "epochs = 3",
        "unknown setting epochs (experiment.toml line 1)",
        "did you mean train.epochs?",
    ),
    (
        "[train]\nepoch = 3",
        "unknown setting train.epoch (experiment.toml line 2)",
        "did you mean train.epochs?",
    ),
    (
        "[optim]\nlr = 0.1",
        "unknown setting optim.lr (experiment.toml line 2)",
        "did you mean optim.base_lr?",
    ),
    (
        "[model]\nbatch_size = 8",
        "unknown setting model.batch_size (experiment.toml line 2)",
        "did you mean train.global_batch?",
    ),
    (
        'name = "resnet18"',
        "unknown setting name (experiment.toml line 1)",
        "did you mean model.name or optim.name?",
    ),
    (
        "[records]\nxyz = 8",
        "unknown setting records.xyz (experiment.toml line 2)",
        "settings of [records]: samples, gradient_norm, sinks",
    ),
    (
        "[trian]\nepochs = 3",
        "unknown section [trian] (experiment.toml line 1)",
        "did you mean [train]?",
    ),
    (
        "[gpu]\nx = 3",
        "unknown section [gpu] (experiment.toml line 1)",
        "sections: data, model, finetune, train, optim, parallel, memory, precision, checkpoint, launch,"
        " records, sinks",
    ),
    (
        "train = 5",
        "train = 5 is not a section of settings (experiment.toml line 1)",
        "write [train] on a line of its own, and below it, for example, epochs = …",
    ),
    (
        "[seed]\nvalue = 1",
        "seed = { value = 1 } is not an integer (experiment.toml line 1)",
        "write a whole number",
    ),
    (
        '[train]\nepochs = "ten"',
        'train.epochs = "ten" is not an integer (experiment.toml line 2)',
        "write a whole number",
    ),
    (
        '[train]\nepochs = "10"',
        'train.epochs = "10" is not an integer (experiment.toml line 2)',
        "write a whole number, without quotes",
    ),
    (
        "[train]\nepochs = true",
        "train.epochs = true is not an integer (experiment.toml line 2)",
        "write a whole number",
    ),
    (
        "[train]\nepochs = 2.5",
        "train.epochs = 2.5 is not an integer (experiment.toml line 2)",
        "write a whole number",
    ),
    (
        "[train]\nepochs = 0",
        "train.epochs = 0 is too small (experiment.toml line 2)",
        "give a value of at least 1",
    ),
    (
        "seed = 99999999999999999999",
        "seed = 99999999999999999999 is beyond 64 bits (experiment.toml line 1)",
        "write a smaller number",
    ),
    (
        "[optim]\nbase_lr = nan",
        "optim.base_lr = nan is not a finite number (experiment.toml line 2)",
        "write a finite number",
    ),
    (
        "[optim]\nmomentum = 1.0",
        "optim.momentum = 1.0 is too large (experiment.toml line 2)",
        "give a value below 1",
    ),
    (
        "[optim]\nbetas = [0.9]",
        "optim.betas = [0.9] is not a list of 2 numbers (experiment.toml line 2)",
        "write, for example, [0.9, 0.99]",
    ),
    (
        "[optim]\nbetas = [0.9, 'x']",
        'optim.betas = [0.9, "x"] holds a value that is not a number (experiment.toml line 2)',
        "write a number",
    ),
    (
        "deterministic = 1",
        "deterministic = 1 is not true or false (experiment.toml line 1)",
        "write true or false",
    ),
    (
        "[model]\nname = 18",
        "model.name = 18 is not a string (experiment.toml line 2)",
        "put it in quotes",
    ),
    (
        'device = "gpu"',
        'device = "gpu" is not one of its choices (experiment.toml line 1)',
        "choose one of auto, cpu, cuda",
    ),
    (
        "[model]\noptions = 3",
        "model.options = 3 is not a table (experiment.toml line 2)",
        "write, for example, { name = 1 }",
    ),
    (
        "[model.options]\nday = 2024-01-01",
        "model.options = { day = 2024-01-01 } holds a date (experiment.toml line 1)",
        "use strings, numbers, true, false, lists and tables only",
    ),
    (
        '"train.epochs" = 3',
        'unknown setting "train.epochs" (experiment.toml)',
        "write the key without quotes, or in its [section]",
    ),
    (
        'runs = "a\\u0000b"',
        'runs = "a\\u0000b" contains a NUL character (experiment.toml line 1)',
        "remove it",
    ),
    (
        "[train]\nepochs = 3\nepochs = 4",
        "experiment.toml line 3 is not valid TOML: epochs = 4",
        "this key or section was given before; keep one of the two",
    ),
    (
        "[model]\nname = resnet18",
        "experiment.toml line 2 is not valid TOML: name = resnet18",
        'put text in quotes: name = "resnet18"',
    ),
    (
        "deterministic = True",
        "experiment.toml line 1 is not valid TOML: deterministic = True",
        "write true in lower case",
    ),
    (
        "[optim]\nbase_lr = .1",
        "experiment.toml line 2 is not valid TOML: base_lr = .1",
        "write digits on both sides of the point, such as 0.1",
    ),
    (
        "train:\n  epochs: 3",
        "experiment.toml line 1 is not valid TOML: train:",
        "write key = value, or [section] on a line of its own",
    ),
    (
        "seed = ",
        "experiment.toml line 1 is not valid TOML: seed =",
        'write a value after "seed"',
    ),
    (
        'runs = "a\x1b[31mb"',
        'experiment.toml line 1 is not valid TOML: runs = "a\\u001b[31mb"',
        "illegal character '\\x1b'",
    ),
    (
        "[optim]\nmomentum = 0",
        "optim.nesterov = true needs a momentum, and optim.momentum = 0",
        "set optim.nesterov = false or optim.momentum = 0.9",
    ),
]

SETS = [
    ("train.epochs", "--set \"train.epochs\" has no '='", "write --set train.epochs=VALUE"),
    ("=3", '--set "=3" has no key', "write --set section.key=VALUE"),
    ("epochs=3", "unknown setting epochs (--set)", "did you mean train.epochs?"),
    ("gpus=3", "unknown setting gpus (--set)", "did you mean parallel.ranks?"),
    ("a.b.c=3", "unknown setting a.b.c (--set)", "`paceline config` lists every setting"),
    ("train=3", "train is a section, not a setting (--set)", "name one, such as train.epochs"),
    (
        "train.epochs=ten",
        'train.epochs = "ten" is not an integer (--set)',
        "write a whole number",
    ),
    (
        "train.epochs=1\nseed=2",
        'train.epochs = "1\\nseed=2" is not an integer (--set)',
        "write a whole number",
    ),
    (
        "model.name='abc",
        "model.name = 'abc is not a quoted string (--set)",
        "close the quotes, or leave them out",
    ),
    (
        "model.options.flag=True",
        "model.options.flag = True is not a TOML value (--set)",
        'write true, false, a number, [a list] or "text"',
    ),
    (
        "model.options..a=1",
        'model.options."".a is no key in model.options (--set)',
        "write model.options.name=value",
    ),
    (
        "data.source=\udcff",
        'data.source = "\\udcff" is not UTF-8 text (--set)',
        "use a name that is UTF-8",
    ),
]


@pytest.mark.parametrize(("text", "what", "hint"), FILES)
def test_a_bad_file(
    text: str, what: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_config("experiment.toml")
    assert (caught.value.what, caught.value.hint) == (what, hint)


@pytest.mark.parametrize(("text", "what", "hint"), SETS)
def test_a_bad_set(text: str, what: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(sets=[text])
    assert (caught.value.what, caught.value.hint) == (what, hint)
