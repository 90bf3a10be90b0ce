"""The noise schedule of a diffusion model, its losses, and a deterministic sampler.

Ho, Jain, Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020 (arXiv 2006.11239), linear schedule;
Song, Meng, Ermon, "Denoising diffusion implicit models", ICLR 2021 (arXiv 2010.02502), sampler with eta = 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

REFERENCE_STEPS = 1000  # the number of steps that betas 1e-4 .. 0.02 were made for


def linear_abar(steps: int, *, rescaled: bool = True) -> Tensor:
    """abar_t = prod alpha_s for t = 0..steps-1 with linear betas, float64.

    Rescaled by 1000 / steps (at most 0.999), the last latent is close to pure noise for any number of steps, as sampling
    assumes; the printed betas are not: at 50 steps abar_T = 0.603, so 78 % of the signal's amplitude would still be there.
    """
    if steps < 2:
        raise ValueError(f"A diffusion needs at least 2 steps, found {steps}. Use for example 50.")
    factor = REFERENCE_STEPS / steps if rescaled else 1.0
    betas = (torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * factor).clamp(max=0.999)
    return (1.0 - betas).cumprod(0)


def add_noise(z0: Tensor, noise: Tensor, abar: Tensor) -> Tensor:
    """z_t of equation 3: sqrt(abar) z_0 + sqrt(1 - abar) eps, with one abar per clip."""
    abar = abar.reshape(-1, *[1] * (z0.dim() - 1))
    return abar.sqrt() * z0 + (1.0 - abar).sqrt() * noise


def diffusion_losses(noise: Tensor, predicted: Tensor) -> Tensor:
    """Equation 6 per clip, as a mean over elements: predicting zero scores 1."""
    return (noise - predicted).square().flatten(1).mean(1)


def consistency_losses(noise: Tensor, predicted: Tensor) -> Tensor:
    """Temporal denoising consistency, equation 8, per clip: mean |d eps - d eps_hat| over neighbouring frames (axis 1)."""
    wanted, found = noise.diff(dim=1), predicted.diff(dim=1)
    return (wanted - found).abs().flatten(1).mean(1)


def ddim(denoise: Callable[[Tensor, Tensor], Tensor], start: Tensor, abar: Tensor, num_steps: int, bound: float = 4.0) -> Tensor:
    """From pure noise to a latent in `num_steps` calls of `denoise(z_t, t)`, without any further random number.

    `bound` keeps each step's guess of z_0 within what standardised latents can be.
    """
    times = torch.linspace(len(abar) - 1, 0, num_steps).round().long().tolist()
    z = start
    for now, after in zip(times, [*times[1:], None], strict=True):
        predicted = denoise(z, torch.full((len(z),), now, device=z.device))
        clean = ((z - (1 - abar[now]).sqrt() * predicted) / abar[now].sqrt()).clamp(-bound, bound)
        if after is None:
            return clean
        predicted = (z - abar[now].sqrt() * clean) / (1 - abar[now]).sqrt()
        z = abar[after].sqrt() * clean + (1 - abar[after]).sqrt() * predicted
    raise AssertionError("unreachable: the last time returns")
