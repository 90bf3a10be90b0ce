"""Label flipping: attackers train honestly on wrong labels (Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems",
ESORICS 2020, arXiv 2007.08432): every label y becomes C - 1 - y, or only one class is called another."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.attacks.poison.attack import Attack
from coterie.randomness import Key
from coterie.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """y -> C - 1 - y for all classes, or `source` -> `target` alone where both are given."""

    source: int | None = None
    target: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None) or (self.source is not None and self.source == self.target):
            raise ValueError(
                f"A label flip needs two different classes or none, found source={self.source}, target={self.target}. "
                "Use for example source=1, target=7, or leave both out to flip all."
            )

    @property
    def taints(self) -> bool:
        return True

    def taint(self, columns: Tensors, num_classes: int | None, key: Key) -> Tensors:
        y = class_labels(columns, num_classes, "A label flip")
        assert num_classes is not None
        if self.source is None or self.target is None:
            return {**columns, "y": num_classes - 1 - y}
        check_class(self.source, num_classes)
        check_class(self.target, num_classes)
        return {**columns, "y": y.masked_fill(y == self.source, self.target)}


def class_labels(columns: Tensors, num_classes: int | None, what: str) -> Tensor:
    """The column "y" of a classification."""
    if num_classes is None or "y" not in columns or columns["y"].is_floating_point():
        raise ValueError(f"{what} needs examples with class labels, found the columns {sorted(columns)}. Use another attack, or other data.")
    return columns["y"]


def check_class(label: int, num_classes: int) -> None:
    if not 0 <= label < num_classes:
        raise ValueError(f"The attack names the class {label}, but there are {num_classes}. Use 0 to {num_classes - 1}.")
