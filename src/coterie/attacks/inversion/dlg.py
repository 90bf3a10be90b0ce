"""DLG: pictures and labels are moved until their gradient is the observed one.

Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019, arXiv 1906.08935:

    x', y' = argmin sum_layers || grad_theta L(f(x'), softmax(y')) - G ||^2        by L-BFGS with rate 1

We differ, to attack more strongly: float64; a strong-Wolfe line search; none of torch's tolerances, which stop where a sigmoid net has
most of its way to go. A start that ends in NaN is drawn again. Sigmoid nets only: the slope of a ReLU net's gradient is zero almost everywhere.
"""

from __future__ import annotations

from coterie.attacks.inversion.guesses import Forward, WholeNet
from coterie.attacks.inversion.matching import Attempt, Distance, Told, lbfgs, squared
from coterie.attacks.inversion.observed import Observed


def dlg(
    forward: Forward, observed: Observed, *, iterations: int = 300, restarts: int = 3, distance: Distance = squared, seed: int = 0,
    told: Told | None = None,
) -> Attempt:  # fmt: skip
    """DLG on a message of the whole net; `forward` gives logits."""
    return lbfgs(WholeNet(forward, observed), observed, iterations=iterations, restarts=restarts, distance=distance, seed=seed, told=told)
