"""Numbers of classifiers against scikit-learn, and against small cases counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from coterie.metrics import BinaryDetection, Classification, Metric


def test_classification_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(200, 5)), rng.integers(0, 5, 200)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    got = Classification(5)({"logits": torch.from_numpy(logits)}, {"y": torch.from_numpy(y)})
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, logits.argmax(1)), abs=1e-15)
    assert got["loss"] == pytest.approx(sk.log_loss(y, probabilities, labels=range(5)), abs=1e-12)
    assert got["f1_macro"] == pytest.approx(sk.f1_score(y, logits.argmax(1), average="macro"), abs=1e-12)


def test_macro_f1_counts_only_classes_that_occur() -> None:
    """Truth 0 0 1, prediction 0 1 1 of 10 classes: F1 is 2/3 for class 0 and for class 1."""
    logits = torch.zeros(3, 10)
    logits[0, 0] = logits[1, 1] = logits[2, 1] = 1.0
    assert Classification(10)({"logits": logits}, {"y": torch.tensor([0, 0, 1])})["f1_macro"] == pytest.approx(2 / 3)


def test_equal_logits_choose_the_first_class() -> None:
    got = Classification(3)({"logits": torch.zeros(4, 3)}, {"y": torch.tensor([0, 0, 0, 1])})
    assert got["accuracy"] == 0.75
    assert got["loss"] == pytest.approx(math.log(3))


def test_a_broken_model_is_wrong_not_undefined() -> None:
    logits = torch.full((2, 3), torch.nan)
    got = Classification(3)({"logits": logits}, {"y": torch.tensor([0, 1])})
    assert got == {"accuracy": 0.0, "loss": math.inf, "f1_macro": 0.0}
    binary = BinaryDetection()({"logits": logits[:, :2]}, {"y": torch.tensor([0, 1])})
    assert (binary["auroc"], binary["accuracy"], binary["loss"]) == (0.0, 0.0, math.inf)


def test_no_examples_give_nan() -> None:
    got = Classification(3)({"logits": torch.zeros(0, 3)}, {"y": torch.zeros(0, dtype=torch.long)})
    assert all(math.isnan(value) for value in got.values())


@pytest.mark.parametrize("levels", [3, 10, 10_000])
def test_detection_equals_scikit_learn_with_and_without_ties(levels: int) -> None:
    rng = np.random.default_rng(levels)
    y = rng.integers(0, 2, 500)
    score = (rng.integers(0, levels, 500) + levels // 2 * y) / levels - 0.7
    logits = np.stack([np.full(500, 0.25), score + 0.25], 1)
    got = BinaryDetection()({"logits": torch.from_numpy(logits)}, {"y": torch.from_numpy(y)})
    predicted = (score >= 0).astype(int)
    false_rate, true_rate, _ = sk.roc_curve(y, score, drop_intermediate=False)
    expected = {
        "auroc": sk.roc_auc_score(y, score),
        "auprc": sk.average_precision_score(y, score),
        "tpr_at_fpr1": true_rate[false_rate <= 0.01].max(),
        "accuracy": sk.accuracy_score(y, predicted),
        "f1_macro": sk.f1_score(y, predicted, average="macro"),
        "f1_micro": sk.f1_score(y, predicted, average="micro"),
        "precision": sk.precision_score(y, predicted),
        "recall": sk.recall_score(y, predicted),
        "loss": sk.log_loss(y, 1 / (1 + np.exp(-score))),
        "prevalence": y.mean(),
    }
    assert got == pytest.approx(expected, abs=1e-12)


def test_ties_count_half_by_hand() -> None:
    """Fakes at 2, 1; reals at 1, 0: of 4 pairs 3 are won and one is tied, so 3.5 / 4.

    Average precision: threshold 2 finds 1 of 2 with precision 1; threshold 1 finds both among three: 1/2 + 1/2 * 2/3.
    No false positive is allowed with 2 reals, so 1 of 2 fakes is found at 1 %.
    """
    got = BinaryDetection()({"logits": torch.tensor([2.0, 1.0, 1.0, 0.0])}, {"y": torch.tensor([1, 1, 0, 0])})
    assert got["auroc"] == 0.875
    assert got["auprc"] == pytest.approx(5 / 6)
    assert got["tpr_at_fpr1"] == 0.5


def test_one_false_positive_in_a_hundred_is_allowed_two_are_not() -> None:
    reals = torch.arange(100.0)  # the largest real is 99, the next 98
    for fakes, expected in [([98.5], 1.0), ([97.5], 0.0), ([99.5, 98.5, 97.5], 2 / 3)]:
        logits = torch.cat([reals, torch.tensor(fakes)])
        y = torch.cat([torch.zeros(100), torch.ones(len(fakes))]).long()
        assert BinaryDetection()({"logits": logits}, {"y": y})["tpr_at_fpr1"] == pytest.approx(expected)


def test_one_class_has_no_auroc() -> None:
    got = BinaryDetection()({"logits": torch.tensor([[0.0, 1.0], [2.0, 1.0]])}, {"y": torch.tensor([1, 1])})
    assert all(math.isnan(got[name]) for name in ("auroc", "auprc", "tpr_at_fpr1"))
    assert (got["accuracy"], got["prevalence"], got["recall"], got["precision"]) == (0.5, 1.0, 0.5, 1.0)


def test_scores_do_not_saturate() -> None:
    """Probabilities of both fakes round to 1 in float32; the logits still rank them above the real one."""
    logits = torch.tensor([[0.0, 40.0], [0.0, 60.0], [0.0, 30.0]])
    assert BinaryDetection()({"logits": logits}, {"y": torch.tensor([1, 1, 0])})["auroc"] == 1.0


def test_every_direction_belongs_to_a_number() -> None:
    y = {"y": torch.tensor([0, 1])}
    metrics: list[Metric] = [Classification(2), BinaryDetection()]
    for metric in metrics:
        values = metric({"logits": torch.eye(2)}, y)
        assert metric.main in metric.directions
        assert set(values) - set(metric.directions) <= {"prevalence"}
        assert set(metric.directions) <= set(values)


def test_wrong_shapes_are_named() -> None:
    y = {"y": torch.zeros(4, dtype=torch.long)}
    with pytest.raises(ValueError, match=r"needs logits of shape \[examples, 5\], but got \[4, 3\]"):
        Classification(5)({"logits": torch.zeros(4, 3)}, y)
    with pytest.raises(ValueError, match=r"but got \[4, 3\]\. Use Classification"):
        BinaryDetection()({"logits": torch.zeros(4, 3)}, y)
