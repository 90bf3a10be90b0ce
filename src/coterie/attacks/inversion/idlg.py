"""iDLG: the label is read off the message, and only the picture is looked for.

Zhao et al., "iDLG: Improved Deep Leakage from Gradients", 2020, arXiv 2001.02610. With cross-entropy and features that are not negative
the row of the last layer's weight gradient that belongs to the label is the only negative one:

    dL/dW_c = (p_c - 1[c = y]) z,   z >= 0   =>   y = argmin_c sum_d dL/dW_cd
"""

from __future__ import annotations

from torch import Tensor

from coterie.attacks.inversion.guesses import Forward, WholeNet
from coterie.attacks.inversion.matching import Attempt, Distance, Told, lbfgs, squared
from coterie.attacks.inversion.observed import Observed
from coterie.tensors import Tensors


def label_of(gradient: Tensors) -> Tensor:
    """The label of a single picture, from the last matrix of the message; of the head, where one was sent."""
    heads = [name for name, value in gradient.items() if name.startswith("head.") and value.dim() == 2]
    if not heads:
        raise ValueError(
            "The label is read from the head's gradient, but this Message holds none: a split method keeps its head. "
            "Use --method free-cotangent, which needs no label."
        )
    rows = gradient[heads[-1]].sum(1)
    return rows.argmin().reshape(1)


def idlg(
    forward: Forward, observed: Observed, *, iterations: int = 300, restarts: int = 3, distance: Distance = squared, seed: int = 0,
    told: Told | None = None,
) -> Attempt:  # fmt: skip
    """DLG with the label read off first; for one picture. `forward` gives logits."""
    if observed.pictures != 1:
        raise ValueError(f"iDLG reads the label of one picture, found a batch of {observed.pictures}. Use dlg or inverting.")
    guess = WholeNet(forward, observed, label_of(observed.gradient))
    return lbfgs(guess, observed, iterations=iterations, restarts=restarts, distance=distance, seed=seed, told=told)


def known_labels(gradient: Tensors, pictures: int) -> Tensor | None:
    """The label where it can be read (one picture, and the head was sent)."""
    readable = pictures == 1 and any(name.startswith("head.") for name in gradient)
    return label_of(gradient) if readable else None


