"""The noise schedule of a diffusion model, its losses per clip, and a deterministic sampler.

Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020, arXiv 2006.11239: linear schedule.
Song, Meng, Ermon, "Denoising diffusion implicit models", ICLR 2021, arXiv 2010.02502: sampler with eta = 0.
Salimans, Ho, "Progressive distillation for fast sampling of diffusion models", ICLR 2022, arXiv 2202.00512: velocity.
Equation numbers are those of PrivFedTalk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_BETAS = (1e-4, 0.02)
_MADE_FOR = 1000  # steps


def linear_abar(steps: int, *, rescaled: bool = True) -> Tensor:
    """abar_t = prod_s alpha_s for t = 0..steps-1 with linear betas, in float64 (equation 4).

    Rescaled by 1000 / steps, the last latent is close to pure noise for any number of steps, as sampling assumes.
    The printed betas are not: at 50 steps abar_T = 0.603, and 78 % of the signal's amplitude would still be there.
    """
    if steps < 2:
        raise ValueError(f"A diffusion needs at least 2 steps, found {steps}. Use for example 50.")
    factor = _MADE_FOR / steps if rescaled else 1.0
    betas = (torch.linspace(*_BETAS, steps, dtype=torch.float64) * factor).clamp(max=0.999)
    return (1.0 - betas).cumprod(0)


def per_clip(values: Tensor, like: Tensor) -> Tensor:
    """One number per clip, to be multiplied with [clips, ...]."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def add_noise(z0: Tensor, noise: Tensor, abar: Tensor) -> Tensor:
    """z_t = sqrt(abar_t) z_0 + sqrt(1 - abar_t) eps, with one abar per clip."""
    abar = per_clip(abar, z0)
    return abar.sqrt() * z0 + (1.0 - abar).sqrt() * noise  # (3)


def velocity(z0: Tensor, noise: Tensor, abar: Tensor) -> Tensor:
    """v = sqrt(abar_t) eps - sqrt(1 - abar_t) z_0."""
    abar = per_clip(abar, z0)
    return abar.sqrt() * noise - (1.0 - abar).sqrt() * z0


def noise_from_velocity(v: Tensor, z_t: Tensor, abar: Tensor) -> Tensor:
    """eps = sqrt(abar_t) v + sqrt(1 - abar_t) z_t, exactly."""
    abar = per_clip(abar, v)
    return abar.sqrt() * v + (1.0 - abar).sqrt() * z_t


def squared_losses(wanted: Tensor, found: Tensor) -> Tensor:
    """Per clip the mean over elements of (wanted - found)^2; for eps it is L_diff, and predicting zero scores 1."""
    return (wanted - found).square().flatten(1).mean(1)  # (6), as a mean


def consistency_losses(noise: Tensor, predicted: Tensor) -> Tensor:
    """Temporal denoising consistency per clip: the mean of |d eps - d eps_theta| over neighbouring frames (axis 1).

    A clip of one frame has no neighbours, and scores 0.
    """
    if noise.shape[1] < 2:
        return noise.new_zeros(len(noise))
    return (noise.diff(dim=1) - predicted.diff(dim=1)).abs().flatten(1).mean(1)  # (8), as a mean


def ddim(denoise: Callable[[Tensor, Tensor], Tensor], start: Tensor, abar: Tensor, steps: int, bound: float = 4.0) -> Tensor:
    """From pure noise to a latent in `steps` calls of v = denoise(z_t, t), without any further random number (equation 14).

    `bound` keeps each step's guess of z_0 within what a standardised latent can be.
    """
    if steps < 1:
        raise ValueError(f"A sampler needs at least 1 step, found {steps}. Use for example 8.")
    times = torch.linspace(len(abar) - 1, 0, steps).round().long().tolist()
    z, clean = start, start
    for i, now in enumerate(times):
        a = abar[now]
        v = denoise(z, torch.full((len(z),), now, device=z.device))
        clean = (a.sqrt() * z - (1.0 - a).sqrt() * v).clamp(-bound, bound)
        noise = (z - a.sqrt() * clean) / (1.0 - a).sqrt()
        if i + 1 < len(times):
            after = abar[times[i + 1]]
            z = after.sqrt() * clean + (1.0 - after).sqrt() * noise
    return clean
