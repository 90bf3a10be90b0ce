"""Run folders written by hand, file by file, as DESIGN's contract says; no engine involved."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MakeRun = Callable[..., Path]
SKILL = {"local": 0.88, "fedavg": 0.80, "fable": 0.93}


def write_run(
    folder: Path,
    *,
    method: str = "fable",
    seed: int = 0,
    rounds: int = 12,
    clients: int = 10,
    finished: bool = True,
    done: int | None = None,
    accuracy: bool = True,
    lift: float = 0.0,
    privacy: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    events: bool = True,
    name: str = "client",
) -> Path:
    """A made-up but consistent run: summary, curves and client rows agree."""
    rng = random.Random(f"{method}-{seed}-{lift}")
    folder.mkdir(parents=True, exist_ok=True)
    done = rounds if done is None else done
    names = [str(i) if name == "client" else f"{name}-{i:02d}" for i in range(clients)]
    data = random.Random(f"data-{seed}-{clients}")
    counts = [[int(data.random() ** 4 * 60) for _ in range(10)] for _ in range(clients)]
    tests = [20 + data.randrange(20) for _ in range(clients)]
    directions = {"accuracy": "max", "loss": "min"} if accuracy else {"loss": "min"}
    info = {
        "recipe": "quickstart",
        "method": method,
        "methods": [{"phase": "train", "name": method, "knobs": {"lr": 0.05, "epochs": 1, "anchors": 64}}],
        "values": {"beta": 0.1, "clients": clients, "rounds": rounds, "seed": seed, **(values or {})},
        "seed": seed,
        "versions": {"coterie": "0.1.0", "torch": "2.15.0", "python": "3.11.7"},
        "commit": "6b67cd3",
        "device": "cpu",
        "precision": "fp32",
        "backend": "loop",
        "backend_reason": "one CPU device and a small model",
        "buffers": "average",
        "metrics": {"main": "accuracy" if accuracy else "loss", "directions": directions},
        "population": {
            "name": "digits",
            "partition": "dirichlet(beta=0.1)",
            "num_classes": 10,
            "classes": [str(i) for i in range(10)],
            "clients": [
                {"client": i, "name": names[i], "train": sum(counts[i]), "validation": 5, "test": tests[i], "counts": counts[i]}
                for i in range(clients)
            ],
        },
        "privacy": privacy,
        "rounds": rounds,
    }
    (folder / "run.json").write_text(json.dumps(info))
    models = ["global", "personal", "local"] if method != "local" else ["personal", "local"]
    top = {"global": 0.78, "personal": SKILL.get(method, 0.85) + lift, "local": 0.87}
    offset = {model: [rng.gauss(0, 0.06) for _ in range(clients)] for model in models}
    lines, rows, wire = [], [], []
    means: dict[tuple[str, str, str], list[float]] = {}
    sent = 0 if method == "local" else 48_040 * clients
    for round in range(1, done + 1):
        for split in ("validation", "test"):
            for model in models:
                level = top[model] * (1 - math.exp(-round / 3))
                values_of = [min(1.0, max(0.0, level + offset[model][i] + rng.gauss(0, 0.01))) for i in range(clients)]
                metrics = {"accuracy": values_of, "loss": [2.3 - 2.2 * value for value in values_of]}
                line: dict[str, Any] = {"round": round, "phase": "train", "split": split, "model": model, "clients": clients}
                line |= {"std": {}, "worst10": {}}
                for metric in directions:
                    numbers = metrics[metric]
                    mean = sum(numbers) / clients
                    line[metric] = mean
                    line["std"][metric] = math.sqrt(sum((value - mean) ** 2 for value in numbers) / clients)
                    worst = sorted(numbers, reverse=directions[metric] == "min")[: max(1, clients // 10)]
                    line["worst10"][metric] = sum(worst) / len(worst)
                    means.setdefault((model, metric, split), []).append(mean)
                lines.append(line)
                for i in range(clients):
                    row = {"round": round, "model": model, "split": split, "client": i, "name": names[i], "examples": tests[i]}
                    rows.append(row | {metric: metrics[metric][i] for metric in directions})
        cost = {"round": round, "event": "round", "phase": "train", "seconds": 0.4 + rng.random() * 0.1, "bytes_up": sent}
        lines.append(cost | {"bytes_down": sent, "cohort": clients, "returned": clients, "train_loss": 2.3 / round})
        for direction in ("up", "down") if sent else ():
            entry = {"round": round, "phase": "train", "exchange": None, "direction": direction, "slot": "shared"}
            wire.append(entry | {"bytes": sent, "clients": clients, "once": False})
    if events and clients > 4:
        lines.append({"round": 3, "event": "client_left_out", "client": 4, "name": names[4], "reason": "nan in slot 'shared'"})
    if events:
        lines.append({"event": "warning", "text": "the cohort was smaller than asked <b>once</b>"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in wire))
    with (folder / "clients.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["round", "model", "split", "client", "name", "examples", *directions])
        writer.writeheader()
        writer.writerows(rows)
    if finished:
        results: dict[str, dict[str, Any]] = {}
        for model in models:
            main = "accuracy" if accuracy else "loss"
            validation = means[(model, main, "validation")]
            best = validation.index(max(validation) if accuracy else min(validation))
            for metric in directions:
                test = means[(model, metric, "test")]
                final = [line for line in lines if line.get("model") == model and line.get("split") == "test"][-1]
                results.setdefault(model, {})[metric] = {
                    "last": test[-1],
                    "best": test[best],
                    "best_round": best + 1,
                    "mean": test[-1],
                    "std": final["std"][metric],
                    "worst10": final["worst10"][metric],
                }
        total = sent * done
        summary = {"recipe": "quickstart", "method": method, "seed": seed, "rounds": rounds, "clients": clients}
        summary |= {"results": results, "backend": "loop", "privacy": privacy}
        summary["bytes"] = {
            "up": total,
            "down": total,
            "once": 0,
            "up_per_client": total / clients,
            "down_per_client": total / clients,
        }
        summary["seconds"] = {"total": 0.45 * done, "per_round_median": 0.45}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_set(folder: Path, methods: list[str], seeds: list[int], **options: Any) -> Path:
    """A recipe of several runs, as its engine leaves it."""
    paths = []
    for method in methods:
        for seed in seeds:
            path = f"{method}/seed-{seed}" if len(seeds) > 1 else method
            write_run(folder / path, method=method, seed=seed, **options)
            paths.append(path)
    (folder / "summary.json").write_text(json.dumps({"runs": paths}))
    return folder


@pytest.fixture
def make_run() -> MakeRun:
    return write_run


@pytest.fixture
def make_set() -> MakeRun:
    return write_set
