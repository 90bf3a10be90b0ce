"""Numbers of classifiers, with ties and absent classes treated exactly.

Ranking numbers walk over *distinct* scores: examples with equal scores enter together, so a tie is half a win in
AUROC and one step in average precision, and no number depends on the order of the examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.metrics.metric import Direction
from coterie.tensors import Tensors

BROKEN = -1  # the class of a row whose logits hold nan: no true class has this number


@dataclass(frozen=True)
class Classification:
    """Accuracy, cross-entropy and macro F1 of `logits` [N, num_classes] against the column "y"."""

    num_classes: int

    main: ClassVar[str] = "accuracy"
    directions: ClassVar[Mapping[str, Direction]] = MappingProxyType({"accuracy": "max", "loss": "min", "f1_macro": "max"})

    def __call__(self, predictions: Tensors, columns: Tensors) -> dict[str, float]:
        logits, y = _on_cpu(predictions["logits"], columns["y"])
        if logits.dim() != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"Classification needs logits of shape [examples, {self.num_classes}], but got {list(logits.shape)}. "
                "Give the model's last layer one output per class."
            )
        predicted = logits.argmax(1).masked_fill(logits.isnan().any(1), BROKEN)
        return {
            "accuracy": _mean((predicted == y).double()),
            "loss": _finite_or_inf(F.cross_entropy(logits, y, reduction="none")),
            "f1_macro": macro_f1(y, predicted, self.num_classes),
        }


@dataclass(frozen=True)
class BinaryDetection:
    """Real (0) against fake (1): `logits` [N, 2], or [N] and [N, 1] for one logit of "fake".

    The score is the difference of the logits, not the probability, which saturates and makes ties of its own.
    AUROC, AUPRC and the rate at 1 % need both classes; a client with one class gets nan for them.
    Average precision of guessing is the prevalence, so the prevalence stands beside it.
    """

    main: ClassVar[str] = "auroc"
    directions: ClassVar[Mapping[str, Direction]] = MappingProxyType(
        {
            "auroc": "max",
            "auprc": "max",
            "tpr_at_fpr1": "max",
            "accuracy": "max",
            "f1_macro": "max",
            "f1_micro": "max",
            "precision": "max",
            "recall": "max",
            "loss": "min",
        }
    )

    def __call__(self, predictions: Tensors, columns: Tensors) -> dict[str, float]:
        logits, y = _on_cpu(predictions["logits"], columns["y"])
        if logits.dim() == 2 and logits.shape[1] == 2:
            score = logits[:, 1] - logits[:, 0]
        elif logits.dim() == 1 or (logits.dim() == 2 and logits.shape[1] == 1):
            score = logits.reshape(-1)
        else:
            raise ValueError(
                f"BinaryDetection needs logits of shape [examples, 2], [examples, 1] or [examples], but got "
                f"{list(logits.shape)}. Use Classification for more than two classes."
            )
        fake = y == 1
        # A broken row goes to the wrong end of the ranking, whatever its class.
        score = torch.where(score.isnan(), torch.where(fake, -torch.inf, torch.inf).double(), score)
        predicted = (score >= 0).long()  # p >= 0.5
        accuracy = _mean((predicted == y).double())
        return {
            **ranking(score, fake),
            "accuracy": accuracy,
            "f1_macro": macro_f1(y, predicted, 2),
            "f1_micro": accuracy,  # with one label per example micro F1 is the accuracy
            "precision": _mean(fake[predicted == 1].double()),
            "recall": _mean((predicted[fake] == 1).double()),
            "loss": _finite_or_inf(F.softplus(torch.where(fake, -score, score))),
            "prevalence": _mean(fake.double()),
        }


def ranking(score: Tensor, positive: Tensor, max_fpr_percent: int = 1) -> dict[str, float]:
    """AUROC, average precision, and the largest true-positive rate at a false-positive rate of at most 1 %."""
    num_positive = int(positive.sum())
    num_negative = positive.numel() - num_positive
    if num_positive == 0 or num_negative == 0:
        return {"auroc": torch.nan, "auprc": torch.nan, "tpr_at_fpr1": torch.nan}
    order = score.argsort(descending=True)
    ranked, hit = score[order], positive[order].long()
    last = torch.ones_like(hit, dtype=torch.bool)  # the last example of each group of equal scores
    last[:-1] = ranked[1:] != ranked[:-1]
    true_positives, false_positives = hit.cumsum(0)[last], (1 - hit).cumsum(0)[last]
    before_true, before_false = _shift(true_positives), _shift(false_positives)
    # Trapezoids between thresholds, in integers: twice the area times positives times negatives.
    twice_area = ((false_positives - before_false) * (true_positives + before_true)).sum()
    precision = true_positives.double() / (true_positives + false_positives)
    allowed = false_positives * 100 <= max_fpr_percent * num_negative
    best = int(true_positives[allowed].max()) if bool(allowed.any()) else 0
    return {
        "auroc": int(twice_area) / (2 * num_positive * num_negative),
        "auprc": float(((true_positives - before_true) * precision).sum()) / num_positive,
        "tpr_at_fpr1": best / num_positive,
    }


def macro_f1(y: Tensor, predicted: Tensor, num_classes: int) -> float:
    """Mean F1 of the classes that occur among the truths or the predictions.

    A client often holds two of ten classes; the eight that neither occur nor are predicted say nothing about it.
    """
    support = torch.bincount(y, minlength=num_classes)
    claimed = torch.bincount(predicted[predicted != BROKEN], minlength=num_classes)
    correct = torch.bincount(y[predicted == y], minlength=num_classes)
    occurs = (support + claimed) > 0
    return _mean(2.0 * correct[occurs].double() / (support + claimed)[occurs])


def _on_cpu(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One transfer per client; after that every number is CPU arithmetic in float64."""
    return logits.detach().cpu().double(), y.detach().cpu().long().reshape(-1)


def _shift(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts[:-1]])


def _mean(values: Tensor) -> float:
    """The mean, nan for no values at all."""
    return float(values.mean())


def _finite_or_inf(losses: Tensor) -> float:
    value = _mean(losses)
    return torch.inf if losses.numel() and value != value else value
