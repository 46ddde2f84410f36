"""`paceline.train`: from a configuration to a finished run; makes the run folder, starts the ranks, shows them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from paceline.checkpoint import load_weights, open_checkpoint
from paceline.config.load import Resolved, load_config
from paceline.config.schema import RunConfig
from paceline.config.write import difference, write_config
from paceline.data.augment import check_augment
from paceline.data.inspect import inspect_data as inspect
from paceline.data.sources import check_sources
from paceline.errors import ExitCode, PacelineError, UserError
from paceline.launch.fit import Stopped, find_micro_batch
from paceline.launch.local import launch
from paceline.launch.locate import Located, locate, take_up
from paceline.launch.objects import carried
from paceline.loop.setup import Objects, num_processes, share_of_device
from paceline.loop.stopping import StopRequest, stop_on_signals
from paceline.loop.train import run as train_here
from paceline.models.registry import check_model
from paceline.optim.build import check_optimizer
from paceline.parallel.launched import launched
from paceline.parallel.whole import load_exactly
from paceline.parallel.world import share_word
from paceline.records.environment import write_environment
from paceline.records.folder import RunFolder, write_atomically
from paceline.sinks.sidecar import tracked
from paceline.sinks.tracker import check_installed
from paceline.ui.follow import View, showing

Config = RunConfig | Resolved | Mapping[str, Any] | Path | str | None


@dataclass(frozen=True)
class Result:
    """How a run ended.

    status: "finished", or "stopped" where it was asked to and can be resumed. metrics: of the last evaluation, and
    the best value of `train.metric`. weights: the final safetensors file, for a finished run.
    """

    folder: Path
    status: str
    reason: str
    step: int
    epoch: float
    metrics: Mapping[str, float]
    seconds: float
    images_per_s: float
    weights: Path | None


def train(
    config: Config = None,
    *,
    run: Path | str | None = None,
    resume: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    eval_data: Any = None,
    augment: Any = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
    show: bool = True,
) -> Result:
    """Trains a model on every device there is, or goes on with a run exactly where it stopped.

    config: a RunConfig, a TOML file, a mapping such as {"train.epochs": 3}, or nothing for the defaults.
    run: the run folder; without it a new one. resume: "auto", a run folder or one of its checkpoints.
    model: a torch.nn.Module, a function that makes one, or a ModelSpec. A module has the trained weights afterwards.
    data, eval_data: map-style torch data sets or Sources. augment: instead of `data.augment`, a callable of one
    image, such as a torchvision transform, or a list of these and of what that setting takes. loss, metrics:
    functions of (output, target) that return one value a sample.
    Raises UserError for what can be mended, DivergedError, RankFailedError.
    """
    objects = Objects(
        model=model,
        data=data,
        eval_data=eval_data,
        augment=augment,
        loss=loss,
        metrics=metrics or {},
    )
    resolved = _resolved(config)
    run = None if run is None else Path(run)
    resume = None if resume is None else str(resume)
    if launched() is not None:
        _as_rank(resolved, run, resume, objects)
    folder, settled = _open(resolved, run, resume, objects)
    with _locked(folder):
        if settled.parallel.micro_batch == "auto":
            settled = _with_micro_batch(folder, settled, objects, show)
        if objects.given and num_processes(settled) == 1:
            _run_here(folder, settled, objects, show)
        else:
            _run_ranks(folder, settled, objects, show)
    result = _result(folder)
    if isinstance(model, nn.Module) and result.weights is not None:
        load_exactly(model, load_weights(result.weights))
    return result


def inspect_data(
    config: Config = None,
    *,
    out: Path | str | None = None,
    limit: int = 0,
    data: Any = None,
    eval_data: Any = None,
    augment: Any = None,
) -> dict[str, Any]:
    """What is in the data of a configuration, as `paceline data` says it.

    out: a folder; then every sample is read (limit: so many of each part), and data.json and data.png written there.
    """
    return inspect(
        _resolved(config).config,
        out=None if out is None else Path(out),
        limit=limit,
        data=data,
        eval_data=eval_data,
        augment=augment,
    )


def _resolved(config: Config) -> Resolved:
    if isinstance(config, Resolved):
        return config
    if isinstance(config, RunConfig):
        return dataclasses.replace(load_config(), config=config)
    if isinstance(config, Mapping):
        return load_config(flags=config)
    return load_config(config)


def _open(
    resolved: Resolved, run: Path | None, resume: str | None, objects: Objects
) -> tuple[RunFolder, RunConfig]:
    """The run folder with its config.toml and environment.json, ready for the ranks."""
    config = resolved.config
    name = f"{config.model.name}-{config.data.source}"
    located = locate(run, resume, runs=Path(config.runs), name=name)
    if located.resumed:
        config = _going_on(resolved, located)
    # What can be refused now is refused before anything is written.
    num_processes(config)
    check_installed(config.records.sinks)
    check_optimizer(config.optim)
    check_augment(config.data.augment)
    if objects.data is None:
        check_sources(config.data)
    if objects.model is None:
        check_model(config.model.name)
    if located.checkpoint is not None:
        open_checkpoint(located.checkpoint)
    folder = located.folder
    notes = [note for note in (located.note, take_up(located)) if note]
    folder.path.mkdir(parents=True, exist_ok=True)
    write_atomically(folder.config, write_config(config))  # with this, it is a run folder
    folder.create()
    write_environment(folder)
    for note in notes:
        print(note, file=sys.stderr)
    return folder, config


def _going_on(resolved: Resolved, located: Located) -> RunConfig:
    """The run's own settings with the changes that were asked for; a whole configuration replaces them."""
    before = load_config(located.folder.config).config
    config = resolved.config if resolved.path is not None else resolved.on_top_of(before).config
    for key, old, new in difference(before, config):
        print(f"changed: {key} = {old!r} → {new!r}", file=sys.stderr)
    return config


def _with_micro_batch(
    folder: RunFolder, config: RunConfig, objects: Objects, show: bool
) -> RunConfig:
    """`config` with `parallel.micro_batch = "auto"` settled, by ranks that are started for that."""
    with _worker(config, objects) as (command, env):
        try:
            return find_micro_batch(
                folder,
                config,
                share=share_of_device(config),
                num_ranks=num_processes(config),
                command=command,
                env=env,
                say=_say if show else lambda text: None,
            )
        except Stopped as stopped:
            raise Interrupted() from stopped


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _worker(config: RunConfig, objects: Objects) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command of a rank, without its run folder, and what its environment needs."""
    command = [sys.executable, "-m", "paceline.worker"]
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if config.deterministic else {}
    with contextlib.ExitStack() as stack:
        if objects.given:
            command += ["--objects", str(stack.enter_context(carried(objects)))]
            # Ranks import what the objects are made of from where it was imported here.
            env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        yield command, env


def _run_ranks(folder: RunFolder, config: RunConfig, objects: Objects, show: bool) -> None:
    num_ranks = num_processes(config)
    with contextlib.ExitStack() as stack:
        command, env = stack.enter_context(_worker(config, objects))
        view = stack.enter_context(_shown(folder, num_ranks)) if show else None
        stack.enter_context(tracked(folder, config, _notices(view)))
        ended = launch(
            [*command, str(folder.path)],
            folder,
            num_ranks=num_ranks,
            config=config.launch,
            env=env,
            say=view.notice if view is not None else None,
        )
    if ended.error is not None:
        raise ended.error
    if ended.exit_code == ExitCode.INTERRUPTED:
        raise Interrupted()


class Interrupted(PacelineError):
    """A second Ctrl-C: everything ended at once, without saving."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(
        self,
        what: str = "ended at once, without saving",
        hint: str = "one Ctrl-C alone saves first",
    ) -> None:
        super().__init__(what, hint)


def _run_here(folder: RunFolder, config: RunConfig, objects: Objects, show: bool) -> None:
    """Objects and one process: in this one, so that a debugger and a notebook see what happens."""
    folder.result.unlink(missing_ok=True)
    stop = StopRequest()
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        view = stack.enter_context(_shown(folder, 1)) if show else None
        stack.enter_context(tracked(folder, config, _notices(view)))
        train_here(folder, config, stop=stop, objects=objects)


def _notices(view: View | None) -> Callable[[str], None]:
    """Where sentences about trackers go: the screen of the run, or stderr where nothing is shown."""
    if view is not None:
        return lambda sentence: view.notice(sentence, "warning")
    return lambda sentence: print(f"paceline: {sentence}", file=sys.stderr, flush=True)


def _shown(folder: RunFolder, num_ranks: int) -> contextlib.AbstractContextManager[View]:
    return showing(folder, num_ranks=num_ranks, from_start=False)


def _as_rank(resolved: Resolved, run: Path | None, resume: str | None, objects: Objects) -> None:
    """Under an outside launcher such as torchrun, this process is one of its ranks; does not return.

    Rank 0 makes the run folder and tells the others, also those of later attempts.
    """
    from paceline.worker import main

    path = share_word("run folder", lambda: str(_open(resolved, run, resume, objects)[0].path))
    main([path], objects=objects if objects.given else None)


@contextlib.contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    """One launcher a run folder; the lock goes with the process, however it ends."""
    with open(folder.path / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"the run in {folder.path} is under way in another process",
                "stop it first, or start another run",
            ) from error
        yield


def _result(folder: RunFolder) -> Result:
    found = json.loads(folder.result.read_text(encoding="utf-8"))
    return Result(
        folder=folder.path,
        status=found["status"],
        reason=found["reason"],
        step=found["step"],
        epoch=found["epoch"],
        metrics=found["metrics"],
        seconds=found["seconds"],
        images_per_s=found["images_per_s"],
        weights=folder.path / found["weights"] if found["weights"] else None,
    )
