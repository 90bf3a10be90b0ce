"""What Gaussian noise on a shared example guarantees, exactly: the numbers behind a FedXDS sharing phase.

For two inputs at L2 distance d the mechanism x -> x + N(0, sigma^2 I) is mu-Gaussian-DP with mu = d / sigma
(`privacy/gaussian.py`).

The printed formula sigma = d sqrt(2 ln(1.25/delta)) / eps holds for eps <= 1 only: at sigma = 0.15, delta = 1e-5 and
d = 1 it says 32.3 where the exact value is 49.9. The loss also grows with the square of the distance for large d, not
linearly. The unit here is one example (and its label) of one client; the relation is replacing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from coterie.privacy.gaussian import gaussian_eps, gaussian_mu


def metric_curve(distance: float, sigma: float, delta: float = 1e-5) -> float:
    """eps for two images at this L2 distance. Holds only if what is done before the noise never moves images apart
    (a mask that does not depend on the image, then the clip)."""
    return gaussian_eps(_mu(distance, sigma), delta)


def record_eps(clip: float, sigma: float, delta: float = 1e-5) -> float:
    """eps for replacing one example by any other: both lie in a ball of radius `clip`, so at most 2 clip apart.
    Holds for every mask, because the clip comes after it; needs noise on every entry."""
    return gaussian_eps(_mu(2.0 * clip, sigma), delta)


def gaussian_sigma(eps: float, distance: float, delta: float = 1e-5) -> float:
    """The noise that makes `distance` cost `eps` (what one would have to use)."""
    if not eps > 0.0:
        raise ValueError(f"eps must be greater than 0, found {eps}. Use for example 8.")
    return distance / gaussian_mu(eps, delta)


def k_rr(eps_y: float, num_classes: int) -> float:
    """The probability with which k-ary randomised response keeps a label; else it becomes one of the others, evenly."""
    if not eps_y >= 0.0 or num_classes < 2:
        raise ValueError(
            f"Randomised response needs eps_y >= 0 and at least 2 classes, found eps_y={eps_y} and {num_classes} classes. "
            "Use for example eps_y=4."
        )
    return 1.0 / (1.0 + (num_classes - 1) * math.exp(-eps_y))


def stretch(fn: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> float:
    """The largest ||f(x) - f(x')|| / ||x - x'|| over these pairs of different inputs (row by row)."""
    moved = (fn(first) - fn(second)).flatten(1).double().norm(dim=1)
    apart = (first - second).flatten(1).double().norm(dim=1)
    return float((moved / apart).max())


def is_non_expansive(fn: Callable[[Tensor], Tensor], first: Tensor, second: Tensor) -> bool:
    """False if one of these pairs shows that `fn` moves inputs apart, so that no metric curve holds for it."""
    return stretch(fn, first, second) <= 1.0 + 1e-6


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What a sharing phase did to every example, in the order: mask, clip, noise."""

    clip: float
    sigma: float
    dense_noise: bool  # on every entry; noise on the kept pixels only would show the mask
    fixed_mask: bool  # chosen without looking at the image
    label_eps: float | None  # None: labels are sent as they are
    delta: float = 1e-5

    def guarantee(self, distances: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)) -> dict[str, object]:
        """The three numbers of FX-D6 and to what each applies; None where nothing finite can be said."""
        record = _finite(record_eps(self.clip, self.sigma, self.delta)) if self.dense_noise else None
        total = None if record is None or self.label_eps is None else record + self.label_eps
        curve = {f"{d:g}": _finite(metric_curve(d, self.sigma, self.delta)) for d in distances}
        return {
            "unit": "one image and its label of one client, replaced by another",
            "delta": self.delta,
            "sigma": self.sigma,
            "clip": self.clip,
            "a_metric_curve": curve,
            "a_holds_for_this_mask": self.fixed_mask and self.dense_noise,
            "b_image_eps": record,
            "c_image_and_label_eps": total,
            "label_eps": self.label_eps,
            "sigma_for_image_eps_8": gaussian_sigma(8.0, 2.0 * self.clip, self.delta),
            "covers": "the shared examples only; the models of every round are not covered",
        }


def _mu(distance: float, sigma: float) -> float:
    if not (distance >= 0.0 and sigma >= 0.0):
        raise ValueError(f"Distance and sigma must be at least 0, found {distance} and {sigma}. Use for example 1 and 0.15.")
    if distance == 0.0:
        return 0.0
    return distance / sigma if sigma > 0.0 else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
