"""Many clients with rows of their own: memory and seconds per round as the population grows.

    python benchmarks/scale.py [--clients 1000,10000] [--rounds 30] [--json FILE]

SCAFFOLD (a control variate per client) with an MLP of about 100,000 parameters, cohort 200, a row memory
limit of 256 MB and a checkpoint every round. Each population runs in a process of its own, so that the peak of
resident memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from coterie import methods
from coterie.data.examples import ClientParts, Population, View
from coterie.engine.run import run
from coterie.engine.settings import Settings
from coterie.method import SGD, Fixed
from coterie.methods.fedavg import Training
from coterie.metrics.classification import Classification
from coterie.models.nets import mlp

FEATURES, CLASSES, COHORT = 64, 10, 200
ROWS_PER_CLIENT = 16


def views(clients: int) -> Population:
    """`clients` views on one table of random points with a linear teacher."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * ROWS_PER_CLIENT, FEATURES, generator=generator)
    table = {"x": x, "y": (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)}
    parts = []
    for client in range(clients):
        rows = torch.arange(client * ROWS_PER_CLIENT, (client + 1) * ROWS_PER_CLIENT)
        parts.append(ClientParts(View(table, rows[:12]), View(table, rows[12:13]), View(table, rows[13:])))
    return Population("views", tuple(str(i) for i in range(clients)), parts, num_classes=CLASSES)


def measure(clients: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    net = mlp(FEATURES, CLASSES, hidden=(310, 250))
    plan = methods.scaffold(rounds=rounds, training=Training(optim=SGD(lr=0.05), batch_size=12), cohort=Fixed(COHORT))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(backend="loop", row_memory_mb=256, eval_clients="cohort", checkpoint_every=1, quiet=True)
        finish = run(plan, views(clients), net=net, metric=Classification(CLASSES), out=Path(folder) / "run", settings=settings)
        lines = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
        seconds = [line["seconds"] for line in lines if line.get("event") == "round"]
        disk = sum(path.stat().st_size for path in (finish.path / "checkpoint").rglob("*") if path.is_file())
    return {
        "clients": clients,
        "parameters": sum(value.numel() for value in net.params.values()),
        "rows": len(finish.clients),
        "disk_gb": disk / 1e9,
        "peak_resident_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "seconds_rounds_2_to_5": statistics.median(seconds[1:5]),
        "seconds_rounds_20_to_30": statistics.median(seconds[19:30]) if len(seconds) >= 30 else float("nan"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.rounds)))
        return
    rows = []
    for clients in map(int, chosen.clients.split(",")):
        command = [sys.executable, __file__, "--one", str(clients), "--rounds", str(chosen.rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout))
        print("  ".join(f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value:,}" for name, value in rows[-1].items()))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
