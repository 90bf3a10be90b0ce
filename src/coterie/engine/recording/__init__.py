"""Recorded steps: a computation on fixed tensors, written down once and replayed without Python's part in it."""

from __future__ import annotations

from coterie.engine.recording.track import Kept as Kept
from coterie.engine.recording.track import Track as Track
from coterie.engine.recording.watch import Unrecordable as Unrecordable
