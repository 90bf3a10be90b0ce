"""A backdoor: pictures with a small bright patch are to be taken for one class, and all others as they are.

Gu et al., "BadNets", 2017, arXiv 1708.06733, for the patch; Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020,
arXiv 1807.00459, for a client that does it and sends `scale` times its update (model replacement). The measure is the backdoor success rate:
the share of test pictures of the other classes that are taken for the target once they carry the patch, reported
as the accuracy on the split "triggered".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.attacks.poison.labels import check_class, class_labels
from coterie.attacks.poison.updates import UpdateAttack, scaled
from coterie.randomness import Key
from coterie.tensors import Groups, Tensors


@dataclass(frozen=True, kw_only=True)
class Backdoor(UpdateAttack):
    """A patch of `size` x `size` bright pixels in the lower right corner of `fraction` of an attacker's pictures, labelled `target`."""

    target: int = 0
    fraction: float = 0.5
    size: int = 2
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"fraction must lie in (0, 1], found {self.fraction}. Use for example 0.5.")
        if self.size < 1 or self.target < 0:
            raise ValueError(f"size must be at least 1 and target at least 0, found {self.size} and {self.target}. Use for example 2 and 0.")

    @property
    def taints(self) -> bool:
        return True

    @property
    def tampers(self) -> bool:
        return self.scale != 1.0

    def taint(self, columns: Tensors, num_classes: int | None, key: Key) -> Tensors:
        y = class_labels(columns, num_classes, "A backdoor")
        assert num_classes is not None
        check_class(self.target, num_classes)
        count = math.ceil(self.fraction * len(y) - 1e-9)
        chosen = torch.from_numpy(key.fold("rows").numpy().permutation(len(y))[:count].copy())
        x, labels = columns["x"].clone(), y.clone()
        x[chosen] = self.patched(columns["x"][chosen])
        labels[chosen] = self.target
        return {**columns, "x": x, "y": labels}

    def trigger(self, columns: Tensors) -> Tensors | None:
        others = columns["y"] != self.target
        rows = {name: column[others] for name, column in columns.items()}
        return {**rows, "x": self.patched(rows["x"]), "y": torch.full_like(rows["y"], self.target)}

    def patched(self, x: Tensor) -> Tensor:
        """These pictures with the patch: 255 in bytes, 1 in floats."""
        if x.dim() != 4 or min(x.shape[-2:]) <= self.size:
            raise ValueError(
                f"A backdoor's patch of {self.size} x {self.size} pixels needs larger pictures [channels, height, width], "
                f"found examples of shape {tuple(x.shape[1:])}. Use a smaller size, or other data."
            )
        marked = x.clone()
        marked[:, :, -self.size :, -self.size :] = 1 if x.is_floating_point() else 255
        return marked

    def change(self, groups: Groups, key: Key) -> Groups:
        return scaled(groups, self.scale)
