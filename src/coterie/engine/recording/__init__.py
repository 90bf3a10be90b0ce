"""Recorded steps: a computation on fixed tensors, written down once and replayed without Python's part in it."""

from __future__ import annotations

from coterie.engine.recording.recorder import Recording as Recording
from coterie.engine.recording.recorder import record as record
from coterie.engine.recording.watch import Unrecordable as Unrecordable
