"""Networks as pure functions, and how to make one of any module: Net(EncoderHead(encoder, head, num_features), CrossEntropy())."""

from coterie.models.adapters import cut_head, from_timm, with_linear
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net

__all__ = ["CrossEntropy", "EncoderHead", "Net", "cut_head", "from_timm", "with_linear"]
