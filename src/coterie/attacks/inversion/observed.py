"""What an honest-but-curious server holds of one client's step: the weights that it sent, and the gradient that came back."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.message import Message
from coterie.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Observed:
    """Weights and gradient of what was exchanged (the whole net, or its encoder), in float64, and what is public about the task.

    `picture` is the shape of one picture, `pictures` how many were in the batch, `low` and `high` the range of a pixel.
    """

    params: Tensors
    gradient: Tensors
    picture: tuple[int, ...]
    classes: int
    pictures: int = 1
    low: float = -1.0
    high: float = 1.0

    @classmethod
    def of_one_step(
        cls, sent: Message, arrived: Message, *, lr: float, weight_decay: float = 0.0, group: str = "shared",
        picture: tuple[int, ...], classes: int, pictures: int = 1, low: float = -1.0, high: float = 1.0,
    ) -> Observed:  # fmt: skip
        """One step of plain SGD, undone: w' = w - lr (g + decay w), so g = (w - w') / lr - decay w. What arrived is w' - w."""
        params = _doubles(sent[group])
        change = _doubles(arrived[group])
        gradient = {name: -value / lr - weight_decay * params[name] for name, value in change.items()}
        if not any(bool(value.any()) for value in gradient.values()):
            raise ValueError("The Message changes nothing, so there is no gradient to attack. Record a round in which clients train.")
        return cls({name: params[name] for name in gradient}, gradient, picture, classes, pictures, low, high)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the batch of pictures that is looked for."""
        return (self.pictures, *self.picture)

    def names(self) -> tuple[str, ...]:
        return tuple(self.gradient)


def _doubles(tensors: Tensors) -> Tensors:
    """Only what has a gradient, in the precision that the attack computes in."""
    return {name: value.detach().to(torch.float64) for name, value in tensors.items() if value.is_floating_point()}
