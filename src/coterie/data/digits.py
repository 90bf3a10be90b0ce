"""1,797 handwritten digits of 8x8 pixels (UCI, 1998): real, and installed with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from coterie.data.table import Table


def digits() -> Table:
    """x is a float in [0, 1] of shape [1, 8, 8]: the counts 0..16 of the original, divided by 16."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16.0).astype(np.float32)).reshape(-1, 1, 8, 8)
    return Table("digits", {"x": x, "y": torch.from_numpy(labels.astype(np.int64))}, tuple("0123456789"))
