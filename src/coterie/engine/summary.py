"""What a run says when it has ended: summary.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coterie.engine.folder import RunFolder, results
from coterie.metrics.metric import Metric
from coterie.privacy.secure_sum import SecureSum


def summarise_run(
    folder: RunFolder, metric: Metric, *, about: Mapping[str, Any], seed: int, rounds: int, clients: int, seconds: Sequence[float],
    backend: str, privacy: Mapping[str, Any] | None, secure: SecureSum | None, stopped: str | None,
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
        **({} if secure is None else {"secure_sum": secure_summary(secure, folder.read("metrics.jsonl"))}),
        **({} if stopped is None else {"stopped": stopped}),
    }


def secure_summary(secure: SecureSum, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a secure sum was over all rounds, and what it had to mend."""
    rounds = [line["secure_sum"] for line in lines if line.get("secure_sum")]
    return {
        **{name: value for name, value in asdict(secure).items() if value is not None},
        "rounds": len(rounds),
        "threshold": max((line["threshold"] for line in rounds), default=secure.threshold),
        "recovered_dropouts": sum(line["recovered"] for line in rounds),
        "clamped_coordinates": sum(line["clamped"] for line in rounds),
        "error_of_sum": max((line["error_of_sum"] for line in rounds), default=None),
        "note": "the server learned sums only, and no client's own update; that alone is no differential privacy",
    }
