"""mixup and cutmix: torchvision's arithmetic, pairs that know no ranks, exact losses, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import v2

from paceline.config.schema import DataConfig
from paceline.data.batch import Batch
from paceline.data.bundle import bundle, load_data
from paceline.data.mixing import Mixing, check_mixing
from paceline.data.order import permutation, step_chunks
from paceline.data.sources.functions import as_source
from paceline.errors import UserError
from paceline.models.losses.mixed import over_mixed_targets
from paceline.models.spec import Sums
from tests.loop.runs import BAD, NUM_CLASSES, Net, Points, largest_difference, train_rank, weights
from tests.ranks import run_ranks

BOTH = Mixing(seed=0, mixup=0.4, cutmix=1.0, probability=0.8, switch=0.5)
SETTINGS = {
    "data__mixup": 0.4,
    "data__cutmix": 1.0,
    "data__mix_probability": 0.8,
    "parallel__micro_batch": 2,
}


def batch_of(n: int = 6, skipped: tuple[int, ...] = ()) -> Batch:
    generator = torch.Generator().manual_seed(1)
    data = {
        "input": torch.randn(n, 3, 7, 9, generator=generator),
        "target": torch.arange(n) % NUM_CLASSES,
    }
    kept = torch.tensor([0.0 if i in skipped else 1.0 for i in range(n)])
    return Batch(data, torch.arange(n), kept, n - len(skipped))


def by_torchvision(images: Tensor, labels: Tensor, drawn: Any) -> tuple[Tensor, Tensor]:
    """Mixed images and soft labels."""
    soft = functional.one_hot(labels, NUM_CLASSES).to(images.dtype)
    if drawn is None:
        return images, soft
    shared = {"labels": soft, "batch_size": len(images)}
    mixup = v2.MixUp(num_classes=NUM_CLASSES)
    cutmix = v2.CutMix(num_classes=NUM_CLASSES)
    if drawn.box is None:
        mixed = mixup.transform(images, {**shared, "lam": drawn.share})
    else:
        top, bottom, left, right = drawn.box
        mixed = cutmix.transform(images, {**shared, "box": (left, top, right, bottom)})
    return mixed, soft * drawn.share + soft.roll(1, 0) * (1 - drawn.share)


def test_pixels_and_labels_are_torchvision_s() -> None:
    kinds = set()
    for group in range(30):
        batch = batch_of()
        drawn = BOTH.draw(2, 64 + group, (7, 9))
        mixed = BOTH(batch, epoch=2, position=64 + group)
        images, soft = by_torchvision(batch.data["input"], batch.data["target"], drawn)
        assert torch.equal(mixed.data["input"], images)
        kinds.add(None if drawn is None else drawn.box is None)
        if drawn is None:
            assert mixed is batch
            continue
        a, b, share = (mixed.data[name] for name in ("target", "target_b", "mix"))
        assert (share >= 0.5).all()
        ours = functional.one_hot(a, NUM_CLASSES) * share[:, None]
        ours = ours + functional.one_hot(b, NUM_CLASSES) * (1 - share)[:, None]
        assert torch.allclose(ours, soft, atol=1e-6)
        assert torch.equal(a, soft.argmax(dim=1)) or drawn.share == 0.5
    assert kinds == {None, True, False}


@pytest.mark.parametrize("kind", [{"cutmix": 0.0}, {"mixup": 0.0}])
def test_a_skipped_row_is_mixed_into_none(kind: dict[str, float]) -> None:
    settings = {"mixup": 1.0, "cutmix": 1.0, "probability": 1.0, "switch": 0.5} | kind
    mixing = Mixing(seed=0, **settings)  # type: ignore[arg-type]
    batch, without = batch_of(6, skipped=(0, 3)), batch_of(6)
    real = torch.tensor([1, 2, 4, 5])
    only = Batch(
        {name: value[real] for name, value in without.data.items()}, real, torch.ones(4), 4
    )
    mixed = mixing(batch, epoch=0, position=3)
    alone = mixing(only, epoch=0, position=3)
    for name in ("input", "target", "target_b", "mix"):
        assert torch.equal(mixed.data[name][real], alone.data[name])
    untouched = batch_of(6).data["input"][[0, 3]]
    assert torch.allclose(mixed.data["input"][[0, 3]], untouched, atol=1e-6)
    assert mixing(batch_of(4, skipped=(0, 1, 2)), epoch=0, position=0).data.keys() == {
        "input",
        "target",
    }


def test_any_loss_is_taken_over_both_labels_and_metrics_over_the_larger() -> None:
    always = Mixing(seed=0, mixup=0.4, cutmix=1.0, probability=1.0, switch=0.5)
    batch = always(batch_of(6, skipped=(2,)), epoch=0, position=0)
    logits = torch.randn(6, NUM_CLASSES, dtype=torch.float64)

    def loss(output: Tensor, batch: Batch) -> Sums:
        values = functional.cross_entropy(output, batch.data["target"], reduction="none")
        right = (output.argmax(1) == batch.data["target"]) * batch.weights
        return Sums((values * batch.weights).sum(), batch.weights.sum(), {"accuracy": right.sum()})

    found = over_mixed_targets(loss)(logits, batch)
    a, b, share = (batch.data[name] for name in ("target", "target_b", "mix"))
    soft = functional.one_hot(a, NUM_CLASSES) * share[:, None]
    soft = soft + functional.one_hot(b, NUM_CLASSES) * (1 - share)[:, None]
    wanted = functional.cross_entropy(logits, soft.double(), reduction="none") * batch.weights
    assert torch.allclose(found.loss, wanted.sum(), rtol=1e-6)
    assert float(found.count) == 5
    assert float(found.metrics["accuracy"]) == float(loss(logits, batch).metrics["accuracy"])


def plain_loop(bad: tuple[int, ...]) -> dict[str, Tensor]:
    """Five steps over whole batches with soft labels, in fp64, written without Paceline's step and loss."""
    torch.manual_seed(0)
    net, points = Net().double(), Points(bad=bad)
    steps, batch, total = math.ceil(len(points) / 12), 12, 5
    peak, warmup = 2.0 * batch / 256, round(0.5 * steps)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    for step in range(total):
        epoch, position = step // steps, step % steps * batch
        order = permutation(0, epoch, len(points))
        loss, count = torch.zeros((), dtype=torch.float64), 0
        for chunk in step_chunks(position, len(points), batch, 2):
            rows = [int(i) for i in order[chunk.start : chunk.stop] if i not in bad]
            drawn = BOTH.draw(epoch, chunk.start, (8, 8)) if len(rows) > 1 else None
            images, soft = by_torchvision(points.x[rows], points.y[rows], drawn)
            count += len(rows)
            if rows:
                loss = loss + functional.cross_entropy(net(images), soft, reduction="sum")
        rate = peak * (step + 1) / warmup
        if step >= warmup:
            rate = peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    return net.state_dict()


def run_it(folder: Path, num_ranks: int, sets: dict[str, Any], **kwargs: Any) -> None:
    if num_ranks == 1:
        train_rank(folder, sets, **kwargs)
    else:
        run_ranks(train_rank, num_ranks, folder, sets, kwargs.get("model"), kwargs.get("data"))


@pytest.mark.parametrize("bad", [(), BAD], ids=["", "skipped"])
def test_any_number_of_ranks_computes_what_a_plain_loop_with_soft_labels_does(
    tmp_path: Path, bad: tuple[int, ...]
) -> None:
    """1, 2 and 3 ranks with tails, dp over 3, and a run that was stopped after 2 steps and went on."""
    sets: dict[str, Any] = SETTINGS | ({"data__on_bad_sample": "skip"} if bad else {})
    wanted = plain_loop(bad)
    for num_ranks in (1, 2, 3):
        run_it(tmp_path / str(num_ranks), num_ranks, sets, data={"bad": bad})
        assert largest_difference(weights(tmp_path / str(num_ranks)), wanted) < 1e-9
    by_dp = {"parallel__strategy": "dp", "parallel__ranks": 3}
    run_it(tmp_path / "dp", 1, sets | by_dp, data={"bad": bad})
    assert largest_difference(weights(tmp_path / "dp"), wanted) < 1e-9
    if not bad:
        every = sets | {"checkpoint__every_steps": 2}
        run_it(
            tmp_path / "parts", 2, every | {"optim__schedule": "constant", "train__max_steps": 2}
        )
        run_it(tmp_path / "parts", 3, every | {"optim__schedule": "constant"})
        run_it(tmp_path / "whole", 1, every | {"optim__schedule": "constant"})
        parts, whole = weights(tmp_path / "parts"), weights(tmp_path / "whole")
        assert largest_difference(parts, whole) < 1e-9


def test_what_cannot_be_mixed_is_refused(tmp_path: Path) -> None:
    class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(2, 8, 8), 0.5 * index

    with pytest.raises(UserError, match=r"data.mixup mixes the classes .* target float32"):
        bundle(DataConfig(mixup=0.2), 0, as_source(Numbers(), "data="), None)
    tokens = {"input": torch.zeros(1, 5, dtype=torch.int64), "target": torch.zeros(1).long()}
    with pytest.raises(UserError, match=r"data.cutmix mixes images, and .* input int64"):
        check_mixing(DataConfig(cutmix=1.0), tokens)
    flat = {"input": torch.zeros(1, 5), "target": torch.zeros(1).long()}
    check_mixing(DataConfig(mixup=1.0), flat)
    with pytest.raises(UserError, match=r"data.cutmix cuts windows"):
        check_mixing(DataConfig(cutmix=1.0), flat)
    with pytest.raises(UserError, match=r"mix_probability = 2.0 is too large"):
        load_data(DataConfig(mix_probability=2), 0)
    with pytest.raises(UserError, match=r"pairs samples within a micro-batch, which is one sample"):
        run_it(tmp_path, 1, SETTINGS | {"parallel__micro_batch": 1})
