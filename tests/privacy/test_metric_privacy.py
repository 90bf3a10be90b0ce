"""The exact Gaussian curve against published numbers, against an integral, and against FedXDS's own claims."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from coterie.attribution import pixel_weights
from coterie.privacy.gaussian import gaussian_delta, gaussian_eps
from coterie.privacy.metric_privacy import (
    Sharing,
    gaussian_sigma,
    is_non_expansive,
    k_rr,
    metric_curve,
    record_eps,
    stretch,
)


@pytest.mark.parametrize(
    ("distance", "eps"),
    [(0.1, 2.75), (0.15, 4.38), (0.5, 19.13), (1, 49.88), (2, 144.89), (5, 696.78), (10, 2505.58), (20, 9456.56)],
)
def test_the_values_of_the_specification(distance, eps):
    assert metric_curve(distance, 0.15) == pytest.approx(eps, abs=0.01)


def test_worst_case_with_clip():
    assert record_eps(10, 0.15) == pytest.approx(9456.56, abs=0.01)
    assert gaussian_sigma(8, 20) == pytest.approx(12.0, abs=0.01)
    assert gaussian_sigma(1, 20) == pytest.approx(74.61, abs=0.01)
    assert gaussian_sigma(1, 1) == pytest.approx(3.73, abs=0.01)
    assert gaussian_sigma(8, 1) == pytest.approx(0.600, abs=0.001)


@pytest.mark.parametrize(("eps", "mu"), [(0.0, 1.0), (0.5, 1.0), (2.0, 0.7), (3.0, 2.0), (10.0, 3.0)])
def test_delta_is_the_hockey_stick_integral(eps, mu):
    def excess(t):
        return max(stats.norm.pdf(t, mu) - math.exp(eps) * stats.norm.pdf(t), 0.0)

    crossing = eps / mu + mu / 2
    expected, _ = integrate.quad(excess, crossing, crossing + 40, limit=500, epsabs=1e-14)
    assert gaussian_delta(eps, mu) == pytest.approx(expected, rel=1e-7, abs=1e-13)


def test_delta_of_one_release_at_eps_zero_is_the_total_variation():
    assert gaussian_delta(0.0, 1.0) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=1e-12)


def test_eps_and_delta_invert_each_other():
    for mu in (0.01, 0.5, 3.0, 40.0):
        for delta in (1e-9, 1e-5, 1e-2):
            eps = gaussian_eps(mu, delta)
            assert eps == 0.0 or gaussian_delta(eps, mu) == pytest.approx(delta, rel=1e-6)
    assert gaussian_eps(1e-6, 1e-5) == 0.0  # total variation 4e-7 < delta
    assert gaussian_eps(math.inf, 1e-5) == math.inf and metric_curve(0.0, 0.0) == 0.0


def test_the_printed_formula_understates_the_loss():
    printed = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.15
    assert printed == pytest.approx(32.30, abs=0.01)
    assert metric_curve(1.0, 0.15) / printed == pytest.approx(1.544, abs=0.001)
    assert metric_curve(20.0, 0.15) > 10 * 20 * printed  # Proposition 1 would allow eps * d


def test_randomised_response():
    assert k_rr(math.log(9), 10) == pytest.approx(0.5)  # e^eps = 9 against 9 other classes
    assert k_rr(0.0, 4) == pytest.approx(0.25) and k_rr(math.inf, 4) == 1.0
    keep, other = k_rr(2.0, 7), (1 - k_rr(2.0, 7)) / 6
    assert math.log(keep / other) == pytest.approx(2.0)


def top_mask(x):
    """f(x) = x * m(x), one of two pixels kept by its size."""
    return x * pixel_weights(x[:, 0].abs(), 50, "binary")[:, None]


def test_a_mask_that_looks_at_the_image_is_not_a_lipschitz_map():
    h = 0.01
    first, second = torch.tensor([[[[1.0, 1 + h]]]]).double(), torch.tensor([[[[1 + h, 1.0]]]]).double()
    assert stretch(top_mask, first, second) == pytest.approx((1 + h) / h)  # kept: (0, 1+h) and (1+h, 0); apart by h sqrt(2)
    assert not is_non_expansive(top_mask, first, second)


def test_a_fixed_mask_and_the_clip_are_non_expansive():
    torch.manual_seed(0)
    mask = torch.rand(1, 4, 4).double()
    first, second = torch.randn(200, 1, 4, 4).double(), torch.randn(200, 1, 4, 4).double()

    def fixed_then_clip(x):
        v = x * mask
        return v * (1.0 / v.flatten(1).norm(dim=1)).clamp(max=1.0).view(-1, 1, 1, 1)

    assert is_non_expansive(fixed_then_clip, first, second)
    assert is_non_expansive(fixed_then_clip, first, first + 1e-4 * second)


def test_the_three_numbers():
    stated = Sharing(clip=10, sigma=0.15, dense_noise=True, fixed_mask=False, label_eps=2.0).guarantee()
    assert stated["b_image_eps"] == pytest.approx(9456.56, abs=0.01)
    assert stated["c_image_and_label_eps"] == pytest.approx(9458.56, abs=0.01)
    assert stated["a_metric_curve"]["1"] == pytest.approx(49.88, abs=0.01) and stated["a_holds_for_this_mask"] is False
    assert stated["sigma_for_image_eps_8"] == pytest.approx(12.0, abs=0.01)
    json.dumps(stated, allow_nan=False)


@pytest.mark.parametrize(
    ("changed", "image", "both"),
    [({"label_eps": None}, 9456.56, None), ({"dense_noise": False}, None, None), ({"sigma": 0.0}, None, None)],
)
def test_no_number_where_nothing_holds(changed, image, both):
    stated = Sharing(**{**dict(clip=10, sigma=0.15, dense_noise=True, fixed_mask=True, label_eps=2.0), **changed}).guarantee()
    assert stated["b_image_eps"] == (None if image is None else pytest.approx(image, abs=0.01))
    assert stated["c_image_and_label_eps"] == both
    assert stated["a_holds_for_this_mask"] is changed.get("dense_noise", True)
    json.dumps(stated, allow_nan=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_eps(1.0, 0.0), "delta must lie strictly between 0 and 1, found 0"),
        (lambda: gaussian_eps(-1.0), "mu = distance / sigma must be at least 0, found -1"),
        (lambda: metric_curve(1.0, -0.1), "Distance and sigma must be at least 0"),
        (lambda: gaussian_sigma(0.0, 1.0), "eps must be greater than 0, found 0"),
        (lambda: k_rr(-1.0, 10), "needs eps_y >= 0 and at least 2 classes"),
    ],
)
def test_bad_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_empirical_loss_stays_below_the_curve():
    """One release at distance 1 and sigma 1: the log-likelihood ratio exceeds eps with the probabilities of delta(eps)."""
    draws = np.random.default_rng(0).normal(1.0, 1.0, 200_000)
    ratio = draws - 0.5  # log N(t; 1, 1) / N(t; 0, 1)
    eps = gaussian_eps(1.0, 0.05)
    estimate = np.mean(np.maximum(1 - np.exp(eps - ratio), 0.0))
    assert estimate == pytest.approx(0.05, abs=0.002)
