"""Inverting Gradients: the direction of the gradient is matched, and pictures are kept smooth.

Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated learning?", NeurIPS 2020, arXiv 2003.14053:

    argmin_x'  1 - cos(grad_theta L(f(x'), y), G) + a_TV TV(x'),   TV = mean |dx| + mean |dy|

by Adam (rate 0.1) on the sign of the slope, rate times 0.1 at 3/8, 5/8 and 7/8 of 4800 iterations, pixels in their valid range,
x' from N(0, 1). The label is iDLG's where the head was sent, otherwise it is varied too. It works on ReLU nets, where DLG does not.
"""

from __future__ import annotations

from coterie.attacks.inversion.guesses import Forward, WholeNet
from coterie.attacks.inversion.idlg import known_labels
from coterie.attacks.inversion.matching import Attempt, Told, signed_adam
from coterie.attacks.inversion.observed import Observed


def inverting(
    forward: Forward, observed: Observed, *, variation: float = 1e-1, iterations: int = 4800, signed: bool = True, restarts: int = 1,
    seed: int = 0, told: Told | None = None,
) -> Attempt:  # fmt: skip
    """Inverting Gradients on a message of the whole net; `forward` gives logits."""
    guess = WholeNet(forward, observed, known_labels(observed.gradient, observed.pictures))
    return signed_adam(
        guess, observed, variation=variation, iterations=iterations, signed=signed, restarts=restarts, seed=seed, told=told
    )
