"""FABLE in four rooms: which samples are anchors (`anchors`), what they turn features into (`coordinates`), a round (`method`), all phases."""

from coterie.methods.fable.anchors import Fill, Selection
from coterie.methods.fable.coordinates import FableLoss, coordinates, decode, embed, fable_outputs, normalised
from coterie.methods.fable.method import Fable, Refresh
from coterie.methods.fable.phases import Join, fable

__all__ = [
    "Fable",
    "FableLoss",
    "Fill",
    "Join",
    "Refresh",
    "Selection",
    "coordinates",
    "decode",
    "embed",
    "fable",
    "fable_outputs",
    "normalised",
]
