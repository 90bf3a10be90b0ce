"""The schedule's published moments, the identities of noise and velocity, consistency over time, and the sampler (PT-T1, PT-T2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.models.talking.diffusion import (
    add_noise,
    consistency_losses,
    ddim,
    linear_abar,
    noise_from_velocity,
    squared_losses,
    velocity,
)

F64 = torch.float64
ABAR = torch.tensor([0.99, 0.6, 0.2, 0.01], dtype=F64)  # a schedule of four steps, for what must hold on any


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# --- the schedule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "last", "digit"), [(50, 0.603, 1e-3), (250, 0.0797, 1e-4), (1000, 4.0e-5, 1e-6)])
def test_t1_with_the_printed_betas_abar_ends_at_the_published_values(steps: int, last: float, digit: float) -> None:
    """Equation 4 as printed; the values are those of spec/privfedtalk.md, section 4, right to their last digit."""
    abar = linear_abar(steps, rescaled=False)
    assert abs(float(abar[-1]) - last) <= digit / 2
    np.testing.assert_allclose(abar.numpy(), np.cumprod(1 - np.linspace(1e-4, 0.02, steps)), rtol=1e-12)


def test_at_1000_steps_rescaling_changes_nothing() -> None:
    torch.testing.assert_close(linear_abar(1000), linear_abar(1000, rescaled=False), rtol=1e-13, atol=0)


@pytest.mark.parametrize("steps", [2, 4, 10, 50, 250, 1000])
def test_rescaled_the_last_latent_is_noise_for_any_number_of_steps(steps: int) -> None:
    """At most the signal that 1000 printed betas leave (4.04e-5), but for 2 steps, where a beta stops at 0.999."""
    abar = linear_abar(steps)
    betas = np.minimum(np.linspace(1e-4, 0.02, steps) * 1000 / steps, 0.999)
    np.testing.assert_allclose(abar.numpy(), np.cumprod(1 - betas), rtol=1e-10)
    assert 0 < float(abar[-1]) < (4.04e-5 if steps > 2 else 1e-3)
    assert float(abar[0]) < 1 and bool((abar.diff() < 0).all())


def test_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"A diffusion needs at least 2 steps, found 1\. Use for example 50"):
        linear_abar(1)


# --- noise and velocity -------------------------------------------------------------------------------------------------------


def test_t1_moments_of_a_noisy_latent() -> None:
    """Over 200,000 draws the mean is sqrt(abar) z_0 and the variance 1 - abar, for each clip's own abar."""
    count, abar = 200_000, torch.tensor([0.9, 0.3, 0.01], dtype=F64)
    z0 = torch.tensor([1.5, -2.0, 3.0], dtype=F64)[:, None].expand(3, count)
    z_t = add_noise(z0, randn(3, count), abar).numpy()
    for row, clean, a in zip(z_t, (1.5, -2.0, 3.0), (0.9, 0.3, 0.01), strict=True):
        spread = 1 - a
        assert abs(row.mean() - math.sqrt(a) * clean) < 5 * math.sqrt(spread / count)
        assert abs(row.var() - spread) < 5 * spread * math.sqrt(2 / count)


def test_noise_and_velocity_by_hand() -> None:
    """abar = 0.36: sqrt(abar) = 0.6 and sqrt(1 - abar) = 0.8."""
    z0, eps, abar = (torch.tensor([[value]], dtype=F64) for value in (2.0, -1.0, 0.36))
    assert float(add_noise(z0, eps, abar[0])) == pytest.approx(0.6 * 2 + 0.8 * -1)
    assert float(velocity(z0, eps, abar[0])) == pytest.approx(0.6 * -1 - 0.8 * 2)


def test_velocity_and_noisy_latent_give_back_noise_and_signal() -> None:
    z0, eps = randn(4, 3, 2, 5, 5), randn(4, 3, 2, 5, 5, seed=1)
    z_t, v = add_noise(z0, eps, ABAR), velocity(z0, eps, ABAR)
    torch.testing.assert_close(noise_from_velocity(v, z_t, ABAR), eps, rtol=1e-12, atol=1e-12)
    signal = ABAR.sqrt().view(4, 1, 1, 1, 1) * z_t - (1 - ABAR).sqrt().view(4, 1, 1, 1, 1) * v
    torch.testing.assert_close(signal, z0, rtol=1e-12, atol=1e-12)


def test_an_error_of_velocity_is_one_of_noise_divided_by_the_signals_amplitude() -> None:
    """The reason why the server's training in v weighs L_diff by 1 / abar."""
    z0, eps, wrong = randn(4, 3, 2, 5, 5), randn(4, 3, 2, 5, 5, seed=1), randn(4, 3, 2, 5, 5, seed=2)
    z_t, v = add_noise(z0, eps, ABAR), velocity(z0, eps, ABAR)
    in_v, in_eps = squared_losses(v, v + wrong), squared_losses(eps, noise_from_velocity(v + wrong, z_t, ABAR))
    torch.testing.assert_close(in_eps, ABAR * in_v, rtol=1e-10, atol=0)


def test_squared_losses_are_means_per_clip_and_predicting_no_noise_scores_1() -> None:
    wanted, found = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]]), torch.tensor([[[1.0, 4.0]], [[3.0, 0.0]]])
    assert squared_losses(wanted, found).tolist() == [2.0, 4.5]
    assert float(squared_losses(randn(1, 400, 500), torch.zeros(1, 400, 500))) == pytest.approx(1, abs=5 * math.sqrt(2 / 200_000))


# --- consistency over time ------------------------------------------------------------------------------------------------------


def test_consistency_by_hand() -> None:
    """Errors 0, 1, -1 of a clip of three frames and one value: |1 - 0| and |-1 - 1|, mean 1.5."""
    noise = torch.tensor([[[5.0], [2.0], [7.0]], [[0.0], [0.0], [0.0]]])
    wrong = torch.tensor([[[0.0], [1.0], [-1.0]], [[4.0], [4.0], [1.0]]])
    assert consistency_losses(noise, noise + wrong).tolist() == [1.5, 1.5]


def test_consistency_equals_plain_loops() -> None:
    eps, predicted = randn(2, 4, 3, 2, 2).numpy(), randn(2, 4, 3, 2, 2, seed=1).numpy()
    expected = [
        np.mean([np.abs((a[f] - a[f - 1]) - (b[f] - b[f - 1])) for f in range(1, 4)]) for a, b in zip(eps, predicted, strict=True)
    ]
    found = consistency_losses(torch.from_numpy(eps), torch.from_numpy(predicted))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_t2_consistency_is_0_for_perfect_noise_and_blind_to_an_offset_that_all_frames_share() -> None:
    eps, predicted = randn(3, 4, 2, 5, 5), randn(3, 4, 2, 5, 5, seed=1)
    assert consistency_losses(eps, eps).tolist() == [0, 0, 0]
    plain = consistency_losses(eps, predicted)
    assert float(plain.min()) > 0.5
    # another constant for each clip, and another one for each place of it: what matters is that frames share it
    for offset in (randn(3, 1, 1, 1, 1, seed=2), randn(3, 1, 2, 5, 5, seed=3)):
        torch.testing.assert_close(consistency_losses(eps, predicted + 9 * offset), plain, rtol=1e-12, atol=0)
        torch.testing.assert_close(consistency_losses(eps, eps + offset), torch.zeros(3, dtype=F64), rtol=0, atol=1e-14)
    assert not torch.allclose(consistency_losses(eps, predicted + randn(3, 4, 1, 1, 1, seed=4)), plain)


def test_a_clip_of_one_frame_has_no_neighbours() -> None:
    assert consistency_losses(randn(2, 1, 3), randn(2, 1, 3, seed=1)).tolist() == [0, 0]


# --- the sampler --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_denoiser_that_knows_the_clean_latent_gives_it_back_exactly(steps: int) -> None:
    """From any z_t the true velocity points at z_0, so each number of steps must end there."""
    abar, z0, asked = linear_abar(50), randn(2, 3, 2, 4, 4).clamp(-4, 4), []

    def oracle(z: Tensor, t: Tensor) -> Tensor:
        asked.append(t.tolist())
        a = abar[t].view(-1, 1, 1, 1, 1)
        return a.sqrt() * (z - a.sqrt() * z0) / (1 - a).sqrt() - (1 - a).sqrt() * z0

    torch.testing.assert_close(ddim(oracle, randn(2, 3, 2, 4, 4, seed=1), abar, steps), z0, rtol=1e-9, atol=1e-9)
    assert all(first == second for first, second in asked)  # one time for all clips of a step
    times = {1: [49], 2: [49, 0], 3: [49, 24, 0], 7: [49, 41, 33, 24, 16, 8, 0]}  # 49 - i 49 / (steps - 1), 24.5 to the even one
    assert [first for first, _ in asked] == times[steps]


def test_two_steps_by_hand() -> None:
    """One number, a velocity that is always 0.5, abar 0.64 and then 0.36 (where sampling begins)."""
    abar = torch.tensor([0.64, 0.36], dtype=F64)
    clean = 0.6 * 1.0 - 0.8 * 0.5  # 0.2
    noise = (1.0 - 0.6 * clean) / 0.8
    z = 0.8 * clean + 0.6 * noise
    found = ddim(lambda z, t: torch.full_like(z, 0.5), torch.ones(1, 1, dtype=F64), abar, 2)
    assert float(found) == pytest.approx(0.8 * z - 0.6 * 0.5, rel=1e-12)


def test_with_the_best_denoiser_of_a_normal_number_samples_have_its_spread() -> None:
    """For z_0 ~ N(m, s^2) the best guess of z_0 is known, and its flow maps N(0, 1) to N(m, s^2) (up to the step's size)."""
    abar, m, s = linear_abar(1000), 0.7, 0.4

    def best(z: Tensor, t: Tensor) -> Tensor:
        a = float(abar[t[0]])
        clean = m + math.sqrt(a) * s**2 / (a * s**2 + 1 - a) * (z - math.sqrt(a) * m)
        return (math.sqrt(a) * (z - math.sqrt(a) * clean)) / math.sqrt(1 - a) - math.sqrt(1 - a) * clean

    start = torch.linspace(-2.5, 2.5, 11, dtype=F64)[:, None]
    torch.testing.assert_close(ddim(best, start, abar, 1000), m + s * start, rtol=0, atol=0.02)


def test_the_guess_of_the_clean_latent_stays_within_the_bound() -> None:
    abar = linear_abar(50)
    for bound in (4.0, 1.5):
        found = ddim(lambda z, t: torch.full_like(z, -100.0), torch.zeros(1, 2, 1, 1, 1, dtype=F64), abar, 3, bound)
        assert found.flatten().tolist() == [bound, bound]


def test_a_sampler_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"A sampler needs at least 1 step, found 0\. Use for example 8"):
        ddim(lambda z, t: z, torch.zeros(1, 1), ABAR, 0)
