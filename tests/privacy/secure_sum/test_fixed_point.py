"""Real numbers in Z_2^32 and Z_2^64: values by hand, no bias, no overflow, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.privacy.secure_sum import FixedPoint

HALF = np.full(1, 0.5)


def test_numbers_by_hand() -> None:
    """3 clients, range 1, 32 bits: (2^31 - 1) / 3 = 715827882 holds 2^29 + 1 but not 2^30 + 1, so f = 29."""
    code = FixedPoint(3, 1.0)
    assert code.fraction_bits == 29 and code.step == 2.0**-29 and code.error == 3 * 2.0**-29
    encoded, clamped = code.encode(np.array([1.0, -1.0, 0.0, 2.0**-29, -(2.0**-29)]), np.full(5, 0.5))
    assert encoded.tolist() == [2**29, 2**32 - 2**29, 0, 1, 2**32 - 1] and encoded.dtype == np.uint32 and clamped == 0
    assert code.decode(encoded).tolist() == [1.0, -1.0, 0.0, 2.0**-29, -(2.0**-29)]


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 3), (0.24, 3), (0.26, 2), (0.99, 2)])
def test_a_fraction_is_rounded_up_as_often_as_it_says(uniform: float, expected: int) -> None:
    """2.25 steps: up for a uniform number below 0.25; -2.75 steps goes to -2 as often."""
    code = FixedPoint(3, 1.0)
    assert code.encode(np.array([2.25 * code.step]), np.array([uniform]))[0].tolist() == [expected]
    assert code.encode(np.array([-2.75 * code.step]), np.array([uniform]))[0].view(np.int32).tolist() == [expected - 5]


def test_rounding_has_no_bias() -> None:
    """The mean of 200,000 roundings lies within five standard errors of the value; plain rounding would be off by 0.3 steps."""
    code, rng = FixedPoint(100, 8.0), np.random.default_rng(0)
    value = 1000.3 * code.step
    encoded, _ = code.encode(np.full(200_000, value), rng.random(200_000))
    assert abs(code.decode(encoded).mean() / code.step - 1000.3) < 5 * math.sqrt(0.3 * 0.7 / 200_000)


@given(
    clients=st.integers(1, 5000), bound=st.floats(1e-9, 1e9), bits=st.sampled_from([32, 64]), seed=st.integers(0, 99), edge=st.booleans()
)
@settings(max_examples=150, deadline=None)
def test_no_sum_within_the_range_overflows_and_its_error_is_bounded(clients: int, bound: float, bits: int, seed: int, edge: bool) -> None:
    """Also where all clients send the largest value and all are rounded up: |sum - true sum| < m 2^-f."""
    code, rng = FixedPoint(clients, bound, bits), np.random.default_rng(seed)  # type: ignore[arg-type]
    some = min(clients, 40)
    values = np.where(rng.random(some) < 0.5, -bound, bound) if edge else rng.uniform(-bound, bound, some)
    uniform = np.zeros(some) if edge else rng.random(some)
    encoded = code.encode(values, uniform)[0]
    centred = [int(v) for v in encoded.view(np.int32 if bits == 32 else np.int64)]
    assert clients * max(map(abs, centred)) <= 2 ** (bits - 1) - 1
    total = code.decode(encoded.sum(keepdims=True, dtype=encoded.dtype))[0]
    exact = math.fsum(values)
    assert abs(total - exact) < some * code.step + 1e-15 * some * bound  # the last part: float64 of the test and of 64-bit sums
    assert math.ldexp(bound, code.fraction_bits + 1) + 1 > (2 ** (bits - 1) - 1) // clients - 1  # no coarser than needed


def test_a_noisy_coordinate_beyond_the_range_is_clamped_and_counted() -> None:
    code = FixedPoint(10, 2.0)
    encoded, clamped = code.encode(np.array([5.0, -1e300, 2.0, 0.5]), np.zeros(4), clamp=True)
    assert clamped == 2
    np.testing.assert_allclose(code.decode(encoded), [2.0, -2.0, 2.0, 0.5], atol=2 * code.step)


def test_whole_noise_is_added_after_rounding_and_clamped_with_the_value() -> None:
    code = FixedPoint(10, 2.0)
    encoded, clamped = code.encode(np.array([0.5, 0.5, -2.0]), np.zeros(3), noise=np.array([3, 2**40, -7]))
    top = int(2.0 / code.step) + 1
    assert encoded.view(np.int32).tolist() == [int(0.5 / code.step) + 3, top, -top] and clamped == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clamp", [False, True])
def test_numbers_that_are_none_are_refused(bad: float, clamp: bool) -> None:
    with pytest.raises(ValueError, match=r"Only finite numbers can be summed securely, found 1 of 3 that are not"):
        FixedPoint(3, 1.0).encode(np.array([0.0, bad, 1.0]), np.zeros(3), clamp=clamp)


@pytest.mark.parametrize("bad", [1.0001, -7.0, 1e300])
def test_a_value_beyond_the_range_is_refused_and_never_wrapped(bad: float) -> None:
    with pytest.raises(ValueError, match=r"A coordinate of .* lies beyond the range 1 of the secure sum.*Declare a larger range, or set a clip"):
        FixedPoint(3, 1.0).encode(np.array([0.0, bad]), np.zeros(2))


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ((0, 1.0, 32), r"needs at least 1 client, found 0"),
        ((3, 0.0, 32), r"range of a fixed-point number must be greater than 0, found 0\.0"),
        ((3, math.inf, 32), r"range .* found inf"),
        ((3, math.nan, 32), r"range .* found nan"),
        ((3, 1.0, 16), r"have 32 or 64 bits, found 16"),
        ((2**31, 1.0, 32), r"2147483648 clients can't be added in 32 bits.*Use 64 bits"),
    ],
)
def test_codes_that_can_not_work_are_refused(knobs: tuple[int, float, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FixedPoint(*knobs)  # type: ignore[arg-type]
