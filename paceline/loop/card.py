"""`model.json`: what one must know besides the weights to use a run's model. Rank 0 writes it when a run starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.data.bundle import Data
from paceline.data.sources.base import Normalization, Source
from paceline.errors import UserError
from paceline.records.folder import write_atomically

FORMAT = 1
_GIVE_BACK = "start it from the Python that has them: paceline.{command}(run, {arguments})"


@dataclass(frozen=True, kw_only=True)
class Card:
    """
    task: classification, multi-label or regression. num_outputs: 0 where the data does not tell.
    channels, image_size: of an input that is a square image, else 0. input_dtype: as the source gives it; uint8 is
    normalized on the device by scale, mean and std. whole_images: of any size, of which the central square is seen.
    given: what was given from Python, by its argument's name, and cannot be found again in this folder.
    """

    task: str
    num_outputs: int
    class_names: tuple[str, ...]
    channels: int
    image_size: int
    input_dtype: str
    whole_images: bool
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    given: tuple[str, ...]

    @property
    def normalization(self) -> Normalization:
        return Normalization(scale=self.scale, mean=self.mean, std=self.std)

    def names(self) -> list[str]:
        """One a class or label; numbers where nobody named them."""
        if len(self.class_names) == self.num_outputs:
            return list(self.class_names)
        return [str(number) for number in range(self.num_outputs)]

    def require(self, command: str, have: Mapping[str, Any], needed: tuple[str, ...]) -> None:
        """Refuses where the run was given an object that is needed and not at hand now."""
        missing = [name for name in needed if name in self.given and not have.get(name)]
        if missing:
            arguments = ", ".join(f"{name}=…" for name in missing)
            raise UserError(
                f"the run was given {' and '.join(f'{name}=' for name in missing)} from Python, "
                "which is not kept in its folder",
                _GIVE_BACK.format(command=command, arguments=arguments),
            )

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")


def make_card(data: Data, task: str, num_outputs: int, given: tuple[str, ...]) -> Card:
    normalization = data.train.normalization
    return Card(
        task=task,
        num_outputs=num_outputs,
        class_names=tuple(data.class_names),
        channels=data.channels,
        image_size=data.image_size,
        input_dtype=str(data.input_dtype).removeprefix("torch."),
        whole_images=data.train.whole_images,
        scale=normalization.scale,
        mean=tuple(normalization.mean),
        std=tuple(normalization.std),
        given=given,
    )


def read_card(path: Path) -> Card:
    """Raises UserError where the file is missing or is no card."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values = {name: found[name] for name in Card.__dataclass_fields__}
        tuples = {name: tuple(values[name]) for name in ("class_names", "mean", "std", "given")}
        return Card(**{**values, **tuples})
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: the run has not begun, or an earlier version of Paceline wrote it",
            "evaluate its weights with a configuration: paceline evaluate model.safetensors --config FILE",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}: {error})", "restore it, or train again"
        ) from error


class Known(Source):
    """A training set of which only the card is left: what evaluation sources ask of one."""

    def __init__(self, card: Card) -> None:
        self.name = "the training set"
        self.num_classes = card.num_outputs if card.task != "regression" else 0
        self.class_names = card.class_names
        self.normalization = card.normalization

    def __len__(self) -> int:
        return 0

    def load(self, index: int) -> Any:
        raise NotImplementedError("only the names and numbers of this set are known")
