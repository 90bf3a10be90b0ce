"""The step of a training recorded once and replayed for every batch and client: on an accelerator, one launch a step."""

from __future__ import annotations

from coterie.engine.graph.backend import Graph as Graph
