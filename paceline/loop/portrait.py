"""What trackers show of a run besides numbers: some inputs as a picture, the model as a graph; made by rank 0."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import warnings

import torch
from torch import Tensor

from paceline.data.generators import generators_kept
from paceline.loop.setup import Prepared
from paceline.parallel.precision import parameter_dtype
from paceline.records.folder import RunFolder
from paceline.records.writer import RecordWriter

NUM_SAMPLES = 16


def portray(folder: RunFolder, prepared: Prepared, records: RecordWriter) -> None:
    """Writes what the run folder does not have yet. Leaves generators and the model in training as they were."""
    with generators_kept():
        if not folder.inputs.exists():
            draw_inputs(folder, prepared)
        if "tensorboard" in prepared.config.records.sinks and not folder.graph.exists():
            try:
                draw_graph(folder, prepared)
            except Exception as error:  # noqa: BLE001 (tracing runs the user's model, which may raise anything)
                reason = (str(error).strip().splitlines() or [""])[0]
                text = f"no graph for TensorBoard: the model cannot be traced ({reason[:200]})"
                records.write("note", text=text)


def draw_inputs(folder: RunFolder, prepared: Prepared) -> None:
    """The first samples of the first epoch, augmented, as one PNG; nothing where inputs are no images."""
    from PIL import Image
    from torchvision.utils import make_grid

    data = prepared.loader.first_samples(NUM_SAMPLES).data
    images = data.get("input") if isinstance(data, dict) else None
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
        return
    if images.is_floating_point():
        low, high = images.min(), images.max()
        images = ((images - low) / (high - low).clamp_min(1e-12) * 255).to(torch.uint8)
    grid = make_grid(images, nrow=4, padding=2)
    folder.inputs.parent.mkdir(exist_ok=True)
    partial = folder.inputs.with_name(".inputs.partial.png")
    Image.fromarray(grid.permute(1, 2, 0).contiguous().numpy()).save(partial)
    os.replace(partial, folder.inputs)


def draw_graph(folder: RunFolder, prepared: Prepared) -> None:
    """Traces one forward pass of a copy of the model, on the CPU and in evaluation mode."""
    from torch.utils.tensorboard import SummaryWriter

    spec, parts = prepared.spec, prepared.training.carried.parts
    module = spec.build()
    if any(module is part for part in parts):  # a module that the user gave
        module = copy.deepcopy(module)
    module = module.to(device="cpu", dtype=parameter_dtype(prepared.config.precision)).eval()
    inputs = spec.inputs(prepared.data.prepare(prepared.loader.first_samples(1)))
    partial = folder.graph.with_name(".graph.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stdout(None):
        warnings.simplefilter(
            "ignore"
        )  # that shapes become constants, which is what one step looks like
        with SummaryWriter(str(partial)) as writer:
            writer.add_graph(module, inputs)
    os.replace(partial, folder.graph)
