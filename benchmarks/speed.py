"""Coterie's backends beside a bare PyTorch loop and installable peers, on the same work in one run.

    python benchmarks/speed.py [--device cpu] [--cases fashion,resnet8] [--backends loop,pool] [--peers bare,flwr] \
        [--rounds 4] [--repeats 2] [--quick] [--json FILE] [--picture FILE.svg]

A backend may name its clients at once, its precision and a method: graph, stacked20, graph:bf16, graph:tf32:scaffold.

A round is one local epoch of every client of the cohort by SGD with momentum, the mean of the models, and every client's
accuracy on its own test part. The pictures are random numbers of the right shape: speed does not depend on what they show.
Every measurement runs in a process of its own, repeated in turn (A B C, A B C), so that a busy minute of the machine
hits all alike; a row holds the best repeat. `bare` is what one writes by hand: one module, one optimiser, one loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """What is computed: a net, and clients with so many examples each."""

    net: str
    shape: tuple[int, ...]
    clients: int
    train: int
    test: int
    batch: int
    cohort: int | None = None


CASES = {
    "fashion": Case("cnn2", (1, 28, 28), 20, 2520, 700, 64),  # 70,000 pictures, 80/20, a tenth of the 80 for validation
    "cnn2-10": Case("cnn2", (1, 28, 28), 20, 600, 150, 10),
    "cnn2-64": Case("cnn2", (1, 28, 28), 20, 2560, 640, 64),
    "resnet8": Case("resnet8", (3, 32, 32), 20, 1280, 320, 64),
    "resnet18": Case("resnet18", (3, 32, 32), 20, 640, 160, 64),
    "clients-10": Case("mlp", (64,), 10, 40, 10, 10, cohort=10),
    "clients-100": Case("mlp", (64,), 100, 40, 10, 10, cohort=10),
    "clients-1000": Case("mlp", (64,), 1000, 40, 10, 10, cohort=10),
    "clients-10000": Case("mlp", (64,), 10000, 40, 10, 10, cohort=10),
    "cohort-1": Case("mlp", (64,), 1000, 40, 10, 10, cohort=1),
    "cohort-100": Case("mlp", (64,), 1000, 40, 10, 10, cohort=100),
    "wide": Case("wide", (64,), 100, 40, 10, 10, cohort=10),
}
ON_CPU = ("fashion", "resnet8", "clients-10", "clients-100", "clients-1000", "clients-10000", "cohort-1", "cohort-100", "wide")


_ON_CPU = "loop,pool"
_ON_CUDA = "loop:tf32,graph,graph:tf32,graph:bf16,stacked20,stacked20:tf32,stacked20:bf16"


# --- one measurement, in a process of its own ------------------------------------------------------------------------------------


def build_net(case: Case) -> Any:
    import torch

    from coterie.models.nets import cnn2, mlp, resnet8, resnet18

    torch.manual_seed(0)
    channels, size = case.shape[0], case.shape[-1]
    builders: dict[str, Callable[[], Any]] = {
        "cnn2": lambda: cnn2(channels, size, 10), "resnet8": lambda: resnet8(channels, 10), "resnet18": lambda: resnet18(channels, 10),
        "mlp": lambda: mlp(size, 10, hidden=(128,)), "wide": lambda: mlp(size, 10, hidden=(1024, 1024)),
    }  # fmt: skip
    return builders[case.net]()


def build_data(case: Case) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    total = case.clients * (case.train + case.test)
    return torch.randn(total, *case.shape, generator=generator), torch.randint(0, 10, (total,), generator=generator)


def cohort_of(case: Case, round: int) -> list[int]:
    import numpy as np

    if case.cohort is None:
        return list(range(case.clients))
    return sorted(np.random.default_rng(round).choice(case.clients, case.cohort, replace=False).tolist())


def train_by_hand(module: Any, optimizer: Any, x: Any, y: Any, batch: int) -> None:
    import torch
    import torch.nn.functional as F

    module.train()
    for rows in torch.randperm(len(x), device=x.device).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()


def accuracy_by_hand(module: Any, x: Any, y: Any) -> float:
    import torch

    module.eval()
    with torch.no_grad():
        return float((module(x).argmax(1) == y).float().mean())


def as_module(net: Any) -> Any:
    module = net.bind(net.params, net.buffers)
    for value in module.parameters():
        value.requires_grad_(True)
    return module


def bare(case: Case, device: str, rounds: int, precision: str) -> list[float]:
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    low = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=precision == "bf16")
    x, y = (column.to(device) for column in build_data(case))
    module = as_module(build_net(case)).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    shared = {name: value.clone() for name, value in module.state_dict().items()}
    size, seconds = case.train + case.test, []
    for round in range(rounds):
        started = time.perf_counter()
        cohort = cohort_of(case, round)
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in shared.items()}
        for client in cohort:
            module.load_state_dict(shared)
            optimizer.state.clear()
            first = client * size
            with low:
                train_by_hand(module, optimizer, x[first : first + case.train], y[first : first + case.train], case.batch)
            for name, value in module.state_dict().items():
                total[name] += value.double() / len(cohort)
        shared = {name: total[name].to(value.dtype) for name, value in shared.items()}
        module.load_state_dict(shared)
        for client in cohort:
            first = client * size + case.train
            with low:
                accuracy_by_hand(module, x[first : first + case.test], y[first : first + case.test])
        seconds.append(time.perf_counter() - started)
    return seconds


def coterie(case: Case, device: str, rounds: int, backend: str, precision: str, method: str) -> list[float]:
    import torch

    from coterie import methods
    from coterie.data.examples import ClientParts, Population, View
    from coterie.engine.run import run
    from coterie.engine.settings import Settings
    from coterie.method import SGD, Everyone, Fixed
    from coterie.methods.fedavg import Training
    from coterie.metrics.classification import Classification

    x, y = build_data(case)
    table, parts, size = {"x": x, "y": y}, [], case.train + case.test
    for client in range(case.clients):
        rows = torch.arange(client * size, (client + 1) * size)
        parts.append(ClientParts(View(table, rows[: case.train]), View(table, rows[:0]), View(table, rows[case.train :])))
    population = Population("random", tuple(map(str, range(case.clients))), parts, num_classes=10)
    momentum = 0.0 if method == "scaffold" else 0.9  # its control variates are for plain steps
    plan = getattr(methods, method)(
        rounds=rounds, training=Training(optim=SGD(lr=0.05, momentum=momentum), batch_size=case.batch),
        cohort=Everyone() if case.cohort is None else Fixed(case.cohort),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        name, width = backend.rstrip("0123456789"), backend.lstrip("abcdefghijklmnopqrstuvwxyz")
        settings = Settings(
            backend=name, devices=device, precision=precision, width=int(width) if width else None, eval_clients="cohort", quiet=True  # type: ignore[arg-type]
        )
        finish = run(plan, population, net=build_net(case), metric=Classification(10), out=Path(folder) / "run", settings=settings)
        lines = [json.loads(line) for line in (finish.path / "metrics.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines if line.get("event") == "round"]


def flwr(case: Case, rounds: int) -> list[float]:
    """Flower's simulation: one actor of one core each, its FedAvg, training and evaluation as two messages a round."""
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_DEDUP_LOGS="0", RAY_DISABLE_DOCKER_CPU_WARNING="1")
    from flower_app import simulate

    return simulate(case, rounds)


class Memory:
    """The most memory that this process and those it started held together, looked at ten times a second.

    Pages that several share count once, by the share that each has in them.
    """

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.1):
            self.peak_mb = max(self.peak_mb, sum(map(_share_mb, _family(os.getpid()))))


def _family(pid: int) -> list[int]:
    try:
        found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:  # it ended
        return []
    return [pid, *(member for child in found for member in _family(child))]


def _share_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


def measure(name: str, who: str, device: str, rounds: int) -> dict[str, Any]:
    """One row. `who` is bare, flwr, pfl, or a backend of Coterie, with a precision and a method where they matter."""
    import torch

    case = CASES[name]
    backend, precision, method = [*who.split(":"), "", ""][:3]
    with Memory() as memory:
        if backend == "bare":
            torch.set_num_threads(os.cpu_count() or 1)
            seconds = bare(case, device, rounds, precision or ("fp32" if device == "cpu" else "tf32"))
        elif who == "flwr":
            seconds = flwr(case, rounds)
        elif who == "pfl":
            from pfl_app import simulate

            torch.set_num_threads(os.cpu_count() or 1)
            seconds = simulate(case, device, rounds)
        else:
            seconds = coterie(case, device, rounds, backend, precision or "fp32", method or "fedavg")
    steady = statistics.median(seconds[1:] or seconds)
    device_mb = torch.cuda.max_memory_allocated() / 1e6 if device != "cpu" and torch.cuda.is_available() else None
    return {
        "case": name, "backend": who, "samples_per_s": (case.cohort or case.clients) * case.train / steady, "seconds_per_round": steady,
        "first_round_s": seconds[0], "rounds": len(seconds), "peak_host_mb": memory.peak_mb, "peak_device_mb": device_mb,
    }  # fmt: skip


# --- all of them, side by side -----------------------------------------------------------------------------------------------------


def measured(name: str, who: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """A measurement in a fresh process, with the wall time of the whole of it."""
    words = ["--one", name, who, "--device", chosen.device, "--rounds", str(chosen.rounds)]
    started = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    wall = time.perf_counter() - started
    if done.returncode:
        return {"case": name, "backend": who, "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**row, "wall_s": wall, "start_up_s": wall - row.pop("in_rounds_s")}


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [row for row in rows if "error" not in row]
    return min(whole, key=lambda row: row["seconds_per_round"]) if whole else rows[0]


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seconds = {row["case"]: row["seconds_per_round"] for row in rows if row["backend"] == "bare" and "error" not in row}
    for row in rows:
        if "error" not in row:
            row["ratio_to_bare"] = seconds[row["case"]] / row["seconds_per_round"] if row["case"] in seconds else None
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("case", "backend", "samples/s", "s/round", "first", "ratio to bare", "wall s", "start-up s", "host MB", "device MB")
    for row in rows:
        if "error" in row:
            table.add_row(row["case"], row["backend"], row["error"])
            continue
        numbers = [row[key] for key in ("samples_per_s", "seconds_per_round", "first_round_s", "ratio_to_bare", "wall_s", "start_up_s",
                                        "peak_host_mb", "peak_device_mb")]  # fmt: skip
        digits = (0, 3, 2, 2, 1, 1, 0, 0)
        shown = ["" if number is None else f"{number:,.{places}f}" for number, places in zip(numbers, digits, strict=True)]
        table.add_row(row["case"], row["backend"], *shown)
    Console(width=max(Console().width, 112)).print(table)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the ratio to the bare loop, one panel a case."""
    whole = [row for row in rows if row.get("ratio_to_bare")]
    widest = max((row["ratio_to_bare"] for row in whole), default=1.0)
    height, lines = 22, []
    for place, row in enumerate(whole):
        y, length = 30 + place * height, 360 * row["ratio_to_bare"] / widest
        lines.append(f'<text x="8" y="{y + 13}">{row["case"]}</text><text x="110" y="{y + 13}">{row["backend"]}</text>')
        colour = "#999" if row["backend"] in ("bare", "flwr", "pfl") else "#2a6fbb"
        lines.append(f'<rect x="190" y="{y}" width="{length:.1f}" height="{height - 6}" fill="{colour}"/>')
        lines.append(f'<text x="{196 + length:.1f}" y="{y + 13}">{row["ratio_to_bare"]:.2f}</text>')
    head = '<text x="8" y="18" font-weight="bold">Rounds per second, as a multiple of a bare loop</text>'
    size = f'width="620" height="{40 + height * len(whole)}"'
    style = 'font-family="sans-serif" font-size="12"'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}><rect {size} fill="white"/>{head}{"".join(lines)}</svg>\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0")
    parser.add_argument("--cases", help=f"of {', '.join(CASES)}")
    parser.add_argument("--backends", help="of loop, pool, graph, stacked; see above")
    parser.add_argument("--peers", default="bare", help="of bare, flwr (needs flwr[simulation]), pfl (needs pfl)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two cases, two rounds, once")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        row = measure(*chosen.one, device=chosen.device, rounds=chosen.rounds)
        print(json.dumps({**row, "in_rounds_s": row["seconds_per_round"] * (row["rounds"] - 1) + row["first_round_s"]}))
        return
    on_cpu = chosen.device == "cpu"
    names = (chosen.cases or ",".join(ON_CPU if on_cpu else CASES)).split(",")
    names, chosen.rounds, chosen.repeats = (["cohort-1", "clients-10"], 2, 1) if chosen.quick else (names, chosen.rounds, chosen.repeats)
    who = [*chosen.peers.split(","), *(chosen.backends or (_ON_CPU if on_cpu else _ON_CUDA)).split(",")]
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; use some of {', '.join(CASES)}")
    rows = []
    for name in names:
        repeats = [{one: measured(name, one, chosen) for one in who} for _ in range(chosen.repeats)]
        rows += [best([repeat[one] for repeat in repeats]) for one in who]
        show(with_ratios(rows)[-len(who) :])
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")
    if chosen.picture:
        draw(rows, chosen.picture)


if __name__ == "__main__":
    main()
