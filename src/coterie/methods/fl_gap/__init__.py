"""FL-GAP in four rooms: which groups train (`policy`), what the server computes (`mixing`), a round (`method`), all phases."""

from coterie.methods.fl_gap.method import FlGap
from coterie.methods.fl_gap.mixing import Probe
from coterie.methods.fl_gap.phases import FineTune, Pretrain, fl_gap
from coterie.methods.fl_gap.policy import Policy, Upload

__all__ = ["FineTune", "FlGap", "Policy", "Pretrain", "Probe", "Upload", "fl_gap"]
