"""Many clients at once: asks of one kind are answered as one computation with a leading axis of clients.

Legend for the whole package: a name ending in `_G` has a leading axis of G clients, `S` counts steps, `B` rows of a batch.
"""

from __future__ import annotations

from coterie.engine.stacked.backend import Stacked as Stacked
