"""A run at Weights & Biases, online, or offline in files that `wandb sync` sends later.

Offline files that were not sent yet are written anew whenever a run goes on. What the service has stays there: of a
step that was taken again it keeps what came first.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.schema import RunConfig
from paceline.records.folder import RunFolder
from paceline.sinks.feed import Point
from paceline.sinks.tracker import final_metrics, hyper_parameters, target


class WandB:
    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder, self._config = folder, config
        self._to = target(folder, config, "wandb").parent  # wandb itself adds its name
        self._run: Any = None
        self.rewrites = False

    def begin(self, run_id: str | None) -> str:
        import wandb

        sinks = self._config.sinks
        run_id = run_id or uuid.uuid4().hex[:8]
        earlier = list(self._to.glob(f"wandb/*run-*-{run_id}"))
        is_sent = any(any(path.glob("*.synced")) for path in earlier)
        self.rewrites = sinks.wandb_mode == "offline" and not is_sent
        if self.rewrites:
            for path in earlier:
                shutil.rmtree(path)
        self._to.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=sinks.wandb_project,
            entity=sinks.wandb_entity or None,
            dir=str(self._to),
            id=run_id,
            name=self._folder.path.absolute().name,
            config=hyper_parameters(self._config),
            allow_val_change=True,
            mode=sinks.wandb_mode,
            resume=None if sinks.wandb_mode == "offline" else "allow",
            reinit="create_new",
            # Only what the records say: no output, code, packages or figures of this process.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                init_timeout=30,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._run.define_metric("*", step_metric="step")
        return run_id

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({"step": point.step, **point.values})

    def show(self, picture: Path) -> None:
        import wandb

        self._run.log({"step": 0, "inputs": wandb.Image(str(picture))})

    def finish(self, result: Mapping[str, Any]) -> None:
        self._run.summary.update({f"final/{k}": v for k, v in final_metrics(result).items()})
        self._run.finish(exit_code=0 if result.get("status") in ("finished", "stopped") else 1)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._run is not None:
                self._run.finish(exit_code=1, quiet=True)
