"""Masks: exact counts, ties, soft and binary weights."""

import math
from fractions import Fraction

import pytest
import torch

from coterie.attribution import keep_mask, normalise, num_kept, pixel_weights


@pytest.mark.parametrize("side", [8, 16, 28, 32])
@pytest.mark.parametrize("s", ["0", "5", "60", "70", "80", "85", "99.9"])
def test_the_number_kept_is_exact(side, s):
    expected = math.ceil((1 - Fraction(s) / 100) * side * side)  # in exact fractions
    assert num_kept(side * side, float(s)) == expected
    relevance = torch.randn(3, side, side)
    assert keep_mask(relevance, float(s)).sum((1, 2)).tolist() == [expected] * 3


def test_known_counts():
    assert num_kept(1024, 80.0) == 205  # ceil(204.8); the authors' threshold keeps 206
    assert num_kept(1024, 0.0) == 1024
    assert num_kept(100, 70.0) == 30  # (1 - 0.7) * 100 is 30.000000000000004 in floats


def test_of_equal_relevances_the_earlier_pixel_stays():
    assert keep_mask(torch.zeros(1, 2, 4), 50).int().tolist() == [[[1, 1, 1, 1], [0, 0, 0, 0]]]
    relevance = torch.tensor([[[3.0, 1.0, 3.0, 2.0], [2.0, 2.0, 0.0, 3.0]]])
    assert keep_mask(relevance, 50).int().tolist() == [[[1, 0, 1, 1], [0, 0, 0, 1]]]


def test_soft_and_binary_weights():
    relevance = torch.tensor([[[-1.0, 3.0], [1.0, 0.0]]])
    assert pixel_weights(relevance, 50, "binary").tolist() == [[[0.0, 1.0], [1.0, 0.0]]]
    assert pixel_weights(relevance, 50, "soft").tolist() == [[[0.0, 1.0], [0.5, 0.0]]]  # (1 + 1) / (3 + 1)
    assert pixel_weights(relevance, 0, "soft").tolist() == [[[0.0, 1.0], [0.5, 0.25]]]


def test_a_map_without_contrast_prefers_nothing():
    assert normalise(torch.full((1, 2, 2), 7.0)).tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


@pytest.mark.parametrize("s", [-1.0, 100.0, math.nan])
def test_a_wrong_percentage_is_refused(s):
    with pytest.raises(ValueError, match=r"must lie in \[0, 100\), found .* Use for example 80"):
        num_kept(10, s)
