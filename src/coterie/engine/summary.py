"""What a run says when it has ended: summary.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.engine.folder import RunFolder, results
from coterie.metrics.metric import Metric


def summarise_run(
    folder: RunFolder, metric: Metric, *, about: Mapping[str, Any], seed: int, rounds: int, clients: int, seconds: Sequence[float],
    backend: str, privacy: Mapping[str, Any] | None, stopped: str | None,
) -> dict[str, Any]:  # fmt: skip
    """From the logs and what the run knows of itself; `stopped` tells why it ended before its plan did."""
    wire = folder.read("wire.jsonl")
    up = sum(line["bytes"] for line in wire if line["direction"] == "up" and not line["once"])
    down = sum(line["bytes"] for line in wire if line["direction"] == "down" and not line["once"])
    once = sum(line["bytes"] for line in wire if line["once"])
    return {
        **{key: about.get(key) for key in ("recipe", "method")},
        "seed": seed,
        "rounds": rounds,
        "clients": clients,
        "results": results(folder.read("metrics.jsonl"), metric.main, metric.directions),
        "bytes": {"up": up, "down": down, "once": once, "up_per_client": up / clients, "down_per_client": down / clients},
        "seconds": {"total": sum(seconds), "per_round_median": statistics.median(seconds) if seconds else None},
        "backend": backend,
        "privacy": privacy,
        **({} if stopped is None else {"stopped": stopped}),
    }
