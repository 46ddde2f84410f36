"""`paceline.evaluate` and `paceline.predict`: a run's weights over samples, on as many ranks as the run had."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.api import Interrupted, Result
from paceline.config.load import Resolved, load_config
from paceline.config.schema import RunConfig
from paceline.config.write import write_config
from paceline.data.sources.files import printable, view_of
from paceline.data.sources.functions import as_source
from paceline.data.sources.loose import LooseImages, find_images, whole_square
from paceline.errors import ExitCode, UserError
from paceline.judging.evaluated import Evaluated, make_evaluated, write_evaluated
from paceline.judging.predictions import Predictions, write_csv
from paceline.launch.local import launch
from paceline.launch.locate import is_run
from paceline.launch.objects import carried
from paceline.loop.card import Card, read_card
from paceline.loop.chosen import Chosen, choose_weights
from paceline.loop.judge import Job, judge
from paceline.loop.setup import Objects, num_processes, resolve
from paceline.loop.stopping import StopRequest
from paceline.parallel.launched import launched
from paceline.records.folder import RunFolder

Changes = Resolved | RunConfig | Mapping[str, Any] | Path | str | None
_REFUSED = "is neither a run folder, nor a checkpoint, nor a weights file"


@dataclass(frozen=True)
class Subject:
    """What is judged: weights, the settings that they belong to, and the run, where there is one."""

    folder: RunFolder | None
    config: RunConfig
    card: Card | None
    weights: Chosen


def evaluate(
    run: Result | Path | str,
    *,
    checkpoint: str = "",
    config: Changes = None,
    data: Any = None,
    model: Any = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
    output: Path | str | None = None,
) -> Evaluated:
    """Measures a run's weights on its own evaluation data, or on other data, with everything its task offers.

    run: a run folder, what `train` returned, a checkpoint, or a weights file (with a config, unless it lies in a run
    folder). checkpoint: final, best, last or step-N; by default final where the run has ended, else last.
    config: changes such as {"parallel.ranks": 1}, or a file. data: a source's name such as "imagefolder:PATH", or a
    data set. model, loss, metrics: what the run was given from Python.
    output: the folder to write to; by default one in the run's `evaluations/`. Nothing else of the run is touched.
    """
    subject = find_subject(run, checkpoint, config)
    objects = Objects(
        model=model,
        eval_data=None if isinstance(data, str) else data,
        loss=loss,
        metrics=metrics or {},
    )
    if isinstance(data, str):
        subject = _with_data(subject, data)
    if subject.card is not None:
        named = bool(subject.config.data.eval_source)
        have = {
            **vars(objects),
            "data": named or objects.eval_data,
            "eval_data": named or objects.eval_data,
        }
        needed = (
            "model",
            "loss",
            "metrics",
            "eval_data" if "eval_data" in subject.card.given else "data",
        )
        subject.card.require("evaluate", have, needed)
    _say(subject.weights.notes)
    with _scratch() as out:
        job = _job(subject, objects, out)
        _run(job)
        evaluated = make_evaluated(
            out, subject=_subject_text(subject), data=_data_text(job.config, objects)
        )
    target = Path(output) if output is not None else _free_folder(subject)
    if target is None:
        return evaluated
    write_evaluated(evaluated, target)
    return dataclasses.replace(evaluated, folder=target)


def predict(
    run: Result | Path | str,
    inputs: Any = None,
    *,
    checkpoint: str = "",
    config: Changes = None,
    data: Any = None,
    model: Any = None,
    top: int = 0,
    output: Path | str | None = None,
) -> Predictions:
    """What a run's weights say of images, or of the samples of a data set.

    inputs: a folder, a file, or a list of them. data: instead of files, a map-style data set or Source, prepared as
    the run's was. output: also write a CSV file; top: with the K likeliest classes instead of all.
    """
    with predicted(
        run, inputs, checkpoint=checkpoint, config=config, data=data, model=model
    ) as found:
        if output is not None:
            with writable(Path(output)) as file:
                write_csv(found, file, top=top)
        return found.loaded()


@contextlib.contextmanager
def predicted(
    run: Result | Path | str,
    inputs: Any = None,
    *,
    checkpoint: str = "",
    config: Changes = None,
    data: Any = None,
    model: Any = None,
) -> Iterator[Predictions]:
    """The predictions as they lie on the disk, to be read in pieces; gone afterwards."""
    subject = find_subject(run, checkpoint, config)
    if subject.card is None:
        raise UserError(
            f"{subject.weights.path} lies in no run folder, so its classes and normalization are not known",
            "name the run folder",
        )
    card = subject.card
    card.require("predict", {"model": model}, ("model",))
    if data is not None:
        source = as_source(data, "data=")
        names = [str(index) for index in range(len(source))]
    else:
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs or [])
        paths, ignored = find_images(given)
        if ignored:
            _say([f"{ignored} files are no images and are ignored"])
        source, names = _images(paths, subject.config, card), [printable(path) for path in paths]
    _say(subject.weights.notes)
    with _scratch() as out:
        _run(_job(subject, Objects(model=model), out, source=source))
        yield Predictions.read(out, names=names, task=card.task, class_names=card.names())


def _images(paths: Sequence[bytes], config: RunConfig, card: Card) -> LooseImages:
    if not card.channels or not card.image_size or card.input_dtype != "uint8":
        what = (
            f"{card.input_dtype} of {card.channels or 'no'} channels"
            if card.channels
            else "no square images"
        )
        raise UserError(
            f"the run's own data set prepares its inputs ({what}), so files cannot be made into them",
            "predict from Python: paceline.predict(run, data=DATASET)",
        )
    size = card.image_size
    view: Callable[[Tensor], Tensor] = (
        view_of(config.data, size) if card.whole_images else _Whole(size)
    )
    return LooseImages(paths, view=view, channels=card.channels, size=size)


@dataclass(frozen=True)
class _Whole:
    size: int

    def __call__(self, image: Tensor) -> Tensor:
        return whole_square(image, self.size)


def find_subject(run: Result | Path | str, checkpoint: str, changes: Changes) -> Subject:
    """The weights that are meant, with the settings of their run and the changes on top."""
    if launched() is not None:
        raise UserError(
            "evaluate and predict start their ranks themselves, and this is a rank of a launcher",
            "start them without torchrun; --set parallel.ranks=N says how many",
        )
    path = run.folder if isinstance(run, Result) else Path(run)
    folder = _folder_of(path)
    if folder is None and not path.is_file():
        what = _REFUSED if path.exists() else "does not exist"
        raise UserError(f"{path} {what}", "name a run folder such as runs/…")
    config = _settings(folder, path, changes)
    card = None
    if folder is not None:
        card = read_card(folder.card)
    if folder is not None and path.resolve() == folder.path.resolve():
        return Subject(folder, config, card, choose_weights(folder, checkpoint))
    if checkpoint:
        raise UserError(
            f"--checkpoint {checkpoint} was given, and {path} already names weights",
            "leave one out",
        )
    if path.is_dir():
        assert folder is not None, "a checkpoint lies in a run folder"
        return Subject(folder, config, card, choose_weights(folder, path.name))
    return Subject(folder, config, card, Chosen(path.stem, path))


def _folder_of(path: Path) -> RunFolder | None:
    """The run folder that a path is, or lies in as a checkpoint or as its final weights."""
    for folder in (path, path.parent, path.parent.parent):
        if is_run(folder) and (folder == path or path.exists()):
            return RunFolder(folder)
    return None


def _settings(folder: RunFolder | None, path: Path, changes: Changes) -> RunConfig:
    if isinstance(changes, RunConfig):
        return changes
    if not isinstance(changes, Resolved):
        changes = (
            load_config(flags=changes) if isinstance(changes, Mapping) else load_config(changes)
        )
    if folder is not None and changes.path is None:
        return changes.on_top_of(load_config(folder.config).config).config
    if folder is None and changes.path is None and not changes.changes:
        raise UserError(
            f"{path} lies in no run folder, so nothing says what model it belongs to",
            "give its settings with --config FILE, or with --set",
        )
    return changes.config


def _with_data(subject: Subject, data: str) -> Subject:
    config = subject.config
    changed = dataclasses.replace(config.data, eval_source=data)
    return dataclasses.replace(subject, config=dataclasses.replace(config, data=changed))


def _job(subject: Subject, objects: Objects, out: Path, source: LooseImages | Any = None) -> Job:
    """config: with the data's normalization of a bad sample: a prediction lists it, an evaluation does as the run."""
    config = subject.config
    if config.parallel.micro_batch == "auto":  # a share that is too large is evaluated in parts
        config = dataclasses.replace(
            config, parallel=dataclasses.replace(config.parallel, micro_batch=0)
        )
    num_ranks = num_processes(config)
    config = resolve(config, num_ranks)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, weights=""),
        train=dataclasses.replace(config.train, max_minutes=0.0),
        launch=dataclasses.replace(config.launch, max_restarts=0),
    )
    if source is not None:
        config = dataclasses.replace(
            config, data=dataclasses.replace(config.data, on_bad_sample="skip")
        )
    return Job(
        config=config,
        card=subject.card,
        weights=subject.weights.path.absolute(),
        objects=objects,
        out=out,
        source=source,
    )


def _run(job: Job) -> None:
    """In this process where one is enough, else as ranks."""
    num_ranks = num_processes(job.config)
    if num_ranks == 1:
        judge(job, StopRequest())
        return
    folder = RunFolder(job.out)
    folder.config.write_text(write_config(job.config), encoding="utf-8")
    env = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if job.config.deterministic:
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with carried(job) as objects:
        command = [sys.executable, "-m", "paceline.worker", str(folder.path)]
        ended = launch(
            [*command, "--objects", str(objects), "--work", "judge"],
            folder,
            num_ranks=num_ranks,
            config=job.config.launch,
            env=env,
        )
    if ended.error is not None:
        raise ended.error
    if ended.exit_code != ExitCode.OK or not (job.out / "found.json").exists():
        raise Interrupted(f"ended by {ended.reason or 'a signal'}", "start it again")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for the ranks' findings and logs; left where they failed, since the message names it."""
    out = Path(tempfile.mkdtemp(prefix="paceline-judge-"))
    try:
        yield out
    except BaseException:
        if not (out / "logs").is_dir():
            shutil.rmtree(out)
        raise
    shutil.rmtree(out)


def _free_folder(subject: Subject) -> Path | None:
    """evaluations/NAME of the run, with a number where there is one already."""
    if subject.folder is None:
        return None
    base = subject.folder.evaluations / subject.weights.name
    names = itertools.chain(
        [base], (base.with_name(f"{base.name}-{n}") for n in itertools.count(2))
    )
    return next(path for path in names if not path.exists())


def _subject_text(subject: Subject) -> dict[str, str]:
    return {
        "run": str(subject.folder.path) if subject.folder is not None else "",
        "weights": subject.weights.name,
        "path": str(subject.weights.path),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _data_text(config: RunConfig, objects: Objects) -> str:
    if objects.eval_data is not None:
        return type(objects.eval_data).__name__
    return config.data.eval_source or config.data.source


@contextlib.contextmanager
def writable(path: Path) -> Iterator[Any]:
    """A text file that takes the place of `path` when it is whole. Raises UserError where it cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        file = open(partial, "w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> UserError:
    why = (error.strerror or str(error)).lower()
    return UserError(f"{path} cannot be written: {why}", "name another file with -o")


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)
