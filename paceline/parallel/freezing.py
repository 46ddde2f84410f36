"""Which parameters are trained, by epoch: fine-tuning's freeze, probe and gradual unfreezing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from paceline.config.schema import FinetuneConfig
from paceline.errors import UserError
from paceline.models.patterns import matches, matching


class Freezing:
    """A pure function of the epoch, so that a resumed run trains what the uninterrupted one does.

    ever: names of all parameters that are trained in some epoch; the optimizer holds these from the start, and
    passes over those that have no gradient yet.
    """

    def __init__(self, module: nn.Module, config: FinetuneConfig, head: Sequence[str]) -> None:
        self._parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        names = list(self._parameters)
        if not names:
            raise UserError("the model has no parameter to train", "check its requires_grad flags")
        frozen = {
            name
            for pattern in config.freeze
            for name in matching(pattern, names, "finetune.freeze")
        }
        if config.probe:
            frozen |= {n for n in names if not any(matches(part, n) for part in head)}
        self._from_epoch = {name: 0 for name in names if name not in frozen}
        for pattern, epoch in config.unfreeze.items():
            meant = matching(pattern, names, "finetune.unfreeze")
            thawed = [name for name in meant if name in frozen]
            if not thawed:
                raise UserError(
                    f"finetune.unfreeze: nothing that {pattern!r} matches is frozen",
                    "freeze it first, with finetune.freeze or finetune.probe",
                )
            for name in thawed:
                self._from_epoch[name] = min(epoch, self._from_epoch.get(name, epoch))
        self.ever = set(self._from_epoch)
        if not any(epoch == 0 for epoch in self._from_epoch.values()):
            raise UserError(
                "every parameter of the model is frozen in the first epoch",
                "leave the head out of finetune.freeze",
            )

    def begin_epoch(self, epoch: int) -> bool:
        """Sets what is trained in this epoch; whether that differs from before."""
        changed = False
        for name, parameter in self._parameters.items():
            trained = name in self.ever and epoch >= self._from_epoch[name]
            changed |= parameter.requires_grad != trained
            parameter.requires_grad_(trained)
            if not trained:
                parameter.grad = None
        return changed

    def notes(self) -> list[str]:
        num = sum(p.numel() for n, p in self._parameters.items() if self._from_epoch.get(n) != 0)
        if not num:
            return []
        later = sorted({epoch for epoch in self._from_epoch.values() if epoch})
        when = f"; more are trained after {', '.join(map(str, later))} epochs" if later else ""
        return [f"{num:,} parameters are frozen{when}"]
