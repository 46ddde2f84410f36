"""TensorBoard event files: scalars, the picture of the inputs, the graph, hyper-parameters.

The files are written anew whenever a run goes on: the records are what counts, and no reader finds a step twice.
Scalars are float32 there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.schema import RunConfig
from paceline.records.folder import RunFolder
from paceline.sinks.feed import Point
from paceline.sinks.tracker import final_metrics, hyper_parameters, target


class TensorBoard:
    rewrites = True

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder, self._config = folder, config
        self._to = target(folder, config, "tensorboard")
        self._writer: Any = None

    def begin(self, run_id: str | None) -> str:
        from torch.utils.tensorboard import SummaryWriter

        for path in self._to.glob("events.out.tfevents.*"):
            path.unlink()
        # A TensorBoard that is open on this folder forgets what it has read by the mark that purge_step sets.
        self._writer = SummaryWriter(str(self._to), purge_step=0)
        return str(self._to)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, walltime=point.time)
        self._writer.flush()

    def show(self, picture: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(picture) as image:
            self._writer.add_image("inputs", np.asarray(image), 0, dataformats="HWC")
        self._writer.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        for path in self._folder.graph.glob("events.out.tfevents.*"):
            shutil.copy(path, self._to)
        metrics = {f"final/{name}": value for name, value in final_metrics(result).items()}
        self._writer.add_hparams(
            hyper_parameters(self._config),
            metrics,
            run_name=".",  # else in a run of its own, named by the clock
            global_step=result.get("step", 0),
        )
        self._writer.close()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
