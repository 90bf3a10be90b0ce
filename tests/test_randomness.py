"""Philox against its published vectors, and draws against the moments of what they are called after."""

import hashlib
import math

import numpy as np
import pytest
import torch

from coterie.randomness import Draw, Key, draw, draw_many, philox, words_of

CPU = torch.device("cpu")

# Random123 (D. E. Shaw Research), tests/kat_vectors, "philox4x32 10": counter, key, output
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_vectors(counter, key, expected):
    out = philox(tuple(torch.tensor([word]) for word in words(counter)), tuple(words(key)))
    assert [int(word) for word in out] == words(expected)


def test_philox_works_on_whole_tensors_and_under_vmap():
    counters = [torch.tensor([words(c)[i] for c, _, _ in VECTORS]) for i in range(4)]
    keys = [torch.tensor([words(k)[i] for _, k, _ in VECTORS]) for i in range(2)]
    expected = torch.tensor([words(e) for _, _, e in VECTORS])
    assert torch.equal(torch.stack(philox(tuple(counters), tuple(keys)), 1), expected)
    each = torch.func.vmap(lambda a, b, c, d, k, j: torch.stack(philox((a, b, c, d), (k, j))))(*counters, *keys)
    assert torch.equal(each, expected)


def test_a_key_is_the_hash_of_its_seed_and_path():
    """The rule of docs/architecture.md: parts with their types, so that 1 and "1" are different places."""
    text = "\x1f".join(["7", "str:round", "int:3", "str:client", "int:12"])
    expected = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    key = Key(7).fold("round", 3).fold("client", 12)
    low, high = key.words
    assert low + (high << 32) == expected
    shuffled = np.random.Generator(np.random.Philox(key=expected)).permutation(20)
    assert key.numpy().permutation(20).tolist() == shuffled.tolist()
    assert key.torch_seed() == expected & (2**63 - 1)
    assert Key(0, (1,)).words != Key(0, ("1",)).words != Key(1, ("1",)).words


def numbers(kind, args=(), count=200_000, step=0, key=Key(5, ("here",)), dtype=torch.float64):
    return draw(key, step, Draw(kind, (count,), args), 0, CPU, dtype)


def close(values, mean, variance):
    """Mean and variance within five standard errors (by the sample's own fourth moment)."""
    values = values.double()
    n, centred = len(values), values - mean
    fourth = float(centred.pow(4).mean())
    assert abs(float(values.mean()) - mean) < 5 * math.sqrt(variance / n)
    assert abs(float(centred.square().mean()) - variance) < 5 * math.sqrt(max(fourth - variance**2, 1e-12) / n)


@pytest.mark.parametrize(
    ("kind", "args", "mean", "variance"),
    [
        ("normal", (), 0, 1),
        ("uniform", (), 1 / 2, 1 / 12),
        ("integers", (6,), 5 / 2, 35 / 12),
        ("bernoulli", (0.3,), 0.3, 0.21),
        ("beta", (2.0, 2.0), 1 / 2, 1 / 20),
        ("beta", (0.5, 1.5), 1 / 4, 1 / 16),  # ab / ((a+b)^2 (a+b+1))
        ("beta", (5.0, 1.0), 5 / 6, 5 / 252),
    ],
)
def test_draws_have_the_moments_of_their_names(kind, args, mean, variance):
    close(numbers(kind, args), mean, variance)


def test_normals_are_normal_in_the_tails():
    values = numbers("normal")
    for limit, share in ((1.0, 0.3173105), (2.0, 0.0455003), (3.0, 0.0026998)):  # 2 (1 - Phi)
        found = float((values.abs() > limit).double().mean())
        assert abs(found - share) < 5 * math.sqrt(share / len(values))
    assert abs(float(values.pow(4).mean()) - 3) < 0.1


def test_categories_come_as_often_as_their_weights():
    counts = torch.bincount(numbers("categorical", (1.0, 0.0, 3.0, 6.0)), minlength=4).double() / 200_000
    assert counts[1] == 0 and (counts - torch.tensor([0.1, 0.0, 0.3, 0.6])).abs().max() < 0.01


def test_uniform_never_reaches_1_and_integers_never_their_limit():
    values = numbers("uniform", dtype=torch.float32)
    assert float(values.min()) >= 0 and float(values.max()) < 1
    assert set(numbers("integers", (6,)).tolist()) == set(range(6))


def test_a_number_depends_on_key_step_and_place_only():
    long, short = numbers("uniform", count=100), numbers("uniform", count=10)
    assert torch.equal(long[:10], short)
    assert torch.equal(long, numbers("uniform", count=100))
    for other in (numbers("uniform", count=100, step=1), numbers("uniform", count=100, key=Key(5, ("there",)))):
        assert not torch.isclose(long, other).any()


def test_draws_are_uncorrelated_between_neighbouring_keys_and_steps():
    rows = torch.stack([numbers("normal", key=Key(0, ("client", k)), step=t, count=20_000) for k in range(3) for t in range(3)])
    correlation = torch.corrcoef(rows) - torch.eye(9)
    assert correlation.abs().max() < 5 / math.sqrt(20_000)


def test_the_step_may_be_a_tensor_under_vmap():
    spec, key = Draw("normal", (4,)), Key(1)
    stacked = torch.func.vmap(lambda step: draw(key, step, spec, 0, CPU, torch.float64))(torch.arange(3))
    for step in range(3):
        assert torch.equal(stacked[step], draw(key, step, spec, 0, CPU, torch.float64))


def test_the_size_batch_stands_for_the_batch():
    value = draw(Key(0), 0, Draw("bernoulli", ("batch", 3), (0.5,)), 7, CPU, torch.float32)
    assert value.shape == (7, 3) and value.dtype == torch.bool


def test_a_draw_with_wrong_numbers_is_refused():
    with pytest.raises(ValueError, match=r"Draw 'beta' takes 2 numbers, found \(2\.0,\)\. Give exactly those"):
        Draw("beta", ("batch",), (2.0,))


@pytest.mark.parametrize(
    ("kind", "args"),
    [("normal", ()), ("uniform", ()), ("integers", (9,)), ("bernoulli", (0.5,)), ("beta", (2.0, 0.5)), ("categorical", (1.0, 2.0))],
)
def test_many_keys_at_once_give_each_keys_own_numbers(kind, args):
    keys = [Key(3, ("client", client)) for client in range(5)]
    spec = Draw(kind, ("batch", 3), args)
    together = draw_many(words_of(keys, CPU), 4, spec, 7, torch.float64)
    for key, found in zip(keys, together, strict=True):
        assert torch.equal(found, draw(key, 4, spec, 7, CPU, torch.float64))
