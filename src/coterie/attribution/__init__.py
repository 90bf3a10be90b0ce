"""Which pixels a network decided by: relevance maps, and masks made from them."""

from coterie.attribution.gradient import gradient
from coterie.attribution.lrp import Layers, check_lrp, fold_batch_norms, lrp
from coterie.attribution.mask import MaskKind, keep_mask, normalise, num_kept, pixel_weights

__all__ = [
    "Layers",
    "MaskKind",
    "check_lrp",
    "fold_batch_norms",
    "gradient",
    "keep_mask",
    "lrp",
    "normalise",
    "num_kept",
    "pixel_weights",
]
