"""Why masks are whole numbers under whole sums: float masks that only cancel in a plain sum (PT-T6).

The demonstration lives here and not in the package. Each pair adds one Gaussian vector and subtracts it again; the server then
takes a weighted mean, as (21) of PrivFedTalk asks for.
"""

from __future__ import annotations

import numpy as np

from coterie.privacy.secure_sum import FixedPoint, InProcess, SecureSum

SIZE, WEIGHTS = 1000, np.array([0.9, 0.1])


def legacy(updates: np.ndarray, size_of_masks: float) -> np.ndarray:
    """What two clients send: update_1 + mask, update_2 - mask."""
    mask = size_of_masks * np.random.default_rng(1).normal(size=SIZE)
    return updates + np.stack([mask, -mask])


def wrong_by(found: np.ndarray, updates: np.ndarray) -> float:
    true = WEIGHTS @ updates
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


UPDATES = 1e-3 * np.random.default_rng(0).normal(size=(2, SIZE))


def test_legacy_masks_cancel_in_a_plain_sum_and_not_in_a_weighted_mean() -> None:
    """With weights .9 and .1 a residue of .8 masks stays: |.8 r| / |.9 x - .1 y| is .8 / sqrt(.82) = 88 % for masks of equal size."""
    sent = legacy(UPDATES, 1e-3)
    np.testing.assert_allclose(sent.sum(0), UPDATES.sum(0), atol=1e-15)
    assert abs(wrong_by(WEIGHTS @ sent, UPDATES) - 0.8 / np.sqrt(0.82)) < 0.05
    assert wrong_by(WEIGHTS @ legacy(UPDATES, 1.0), UPDATES) > 500  # and masks that hide anything are larger than the updates


def test_legacy_masks_do_not_hide_and_do_not_cancel_exactly() -> None:
    """What is sent still points along the update, and large masks leave a rounding error in float32."""
    sent = legacy(UPDATES, 1e-3)
    assert np.corrcoef(sent[0], UPDATES[0])[0, 1] > 0.6
    rounded = legacy(UPDATES, 1e4).astype(np.float32)
    assert np.abs(rounded.sum(0) - UPDATES.sum(0)).max() > 1e-4


def test_the_same_weights_under_the_secure_sum() -> None:
    """Three clients, the third without weight: a x and a are summed, and the mean is right to the rounding of fixed point."""
    weights = np.append(WEIGHTS, 0.0)
    code, rng = FixedPoint(3, 1.0), np.random.default_rng(2)
    protocol = InProcess(SecureSum(), 0, (0, 1, 2), SIZE + 1)
    protocol.open()
    for client, update in enumerate([*UPDATES, np.zeros(SIZE)]):
        protocol.add(client, code.encode(np.append(weights[client] * update, weights[client]), rng.random(SIZE + 1))[0])
    found = code.decode(protocol.close())
    np.testing.assert_allclose(found[:-1] / found[-1], WEIGHTS @ UPDATES, atol=2 * code.error)
