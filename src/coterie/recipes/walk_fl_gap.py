"""FL-GAP, walking: detectors of forged faces that differ from client to client, against FedAvg from the same start."""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table as Printed
from torch import nn

from coterie.engine.folder import write_json
from coterie.engine.run import Finish
from coterie.method import SGD, Nobody, Phase, Plan
from coterie.methods.fedavg import FedAvg, Training
from coterie.methods.fl_gap import Policy, Pretrain, fl_gap
from coterie.metrics.classification import BinaryDetection
from coterie.models.losses import CrossEntropy
from coterie.models.net import EncoderHead, Net
from coterie.models.nets import GlobalPool
from coterie.models.norm import BatchNorm
from coterie.recipes.forged_faces import DRAWN_CLIENTS, PHOTO_CLIENTS, Scene, drawn, photographed
from coterie.recipes.session import Session, seeded
from coterie.report.records import number, numbers, read_lines
from coterie.states import ClientId
from coterie.tensors import num_elements


def walk_fl_gap(
    session: Session, *, rounds: int = 15, data: Literal["procedural", "faces"] = "procedural",
    clients: int | None = None, cameras: tuple[str, ...] = ("phone",), people: int = 100, public_people: int = 200, pretrain_rounds: int = 4,
    pretrain_epochs: int = 3, personal_rounds: int = 3, lr: float = 0.03, epochs: int = 1, batch_size: int = 32,
    knn: int = 2, metric: Literal["euclidean", "cosine"] = "euclidean",
    rule: Literal["hysteresis", "literal"] = "hysteresis", eps_imp: float = 1e-3, eps_gap: float = 0.1, start_open: int = 3,
    lambda_prox: float = 1e-3, data_dir: str | None = None,
) -> None:  # fmt: skip
    """FL-GAP and FedAvg from one pre-trained detector of forged faces: accuracy, upload, and who neighbours whom.

    --data faces                    real pictures (fair pairs) from the folder that COTERIE_DATA names, instead of drawn ones
    --cameras phone,webcam,night    clients with one forgery differ in camera too, which helps FL-GAP and misleads its graph
    --clients 12                    dealt out over the forgeries: of drawn faces 12 clients (4 forgeries), of real ones 8 (2)
    --people 100                    drawn persons per client
    """
    seed = session.settings.seed
    if data == "procedural":
        scene = drawn(people, public_people, cameras, seed, DRAWN_CLIENTS if clients is None else clients)
    else:
        scene = photographed(data_dir, seed, PHOTO_CLIENTS if clients is None else clients)
    population = scene.population
    size = int(population.parts[0].train.columns["x"].shape[-1])
    training = Training(optim=SGD(lr=lr, momentum=0.9, weight_decay=5e-4), epochs=epochs, batch_size=batch_size)
    pretraining = Training(optim=SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="cosine_round"), epochs=pretrain_epochs)
    policy = Policy(rule=rule, eps_imp=eps_imp, eps_gap=eps_gap, open_at_start=start_open)
    own = fl_gap(
        rounds=rounds, input_shape=(3, size, size), training=training, policy=policy, lambda_prox=lambda_prox, knn=knn,
        metric=metric, pretrain_rounds=pretrain_rounds, pretraining=pretraining, personal_rounds=personal_rounds,
    )  # fmt: skip
    server = (Phase("pretrain", pretrain_rounds, Pretrain(training=pretraining), Nobody()),) if pretrain_rounds else ()
    average: Plan = (*server, Phase("train", rounds, FedAvg(training=training)))
    net = seeded(seed, detector)
    found = session.run_all({"fedavg": average, "fl_gap": own}, population, net=net, metric=BinaryDetection())
    walk = Walk(found["fl_gap"], found["fedavg"], scene, net, pretrain_rounds, rounds)
    write_json(session.out / "walk.json", walk.facts())
    if not session.settings.quiet:
        walk.show(Console(highlight=False))


def detector() -> Net:
    """Seven 3x3 convolutions of 32 channels with batch norm and a linear head: eight groups of nearly equal size."""
    strides = (2, 1, 2, 1, 2, 1, 1)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, stride in enumerate(strides, 1):
        inputs = 3 if place == 1 else 32
        layers[f"block{place}"] = nn.Sequential(nn.Conv2d(inputs, 32, 3, stride, 1, bias=False), BatchNorm(32), nn.ReLU())
    layers["pool"] = GlobalPool()
    return Net(EncoderHead(nn.Sequential(layers), nn.Linear(32, 2), 32), CrossEntropy())


@dataclass(frozen=True, eq=False)
class Walk:
    """What the two runs say about the method: read from their folders and the server's rows."""

    own: Finish
    average: Finish
    scene: Scene
    net: Net
    pretrain_rounds: int
    rounds: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.scene.population.names

    def scores(self) -> dict[str, dict[ClientId, Mapping[str, float]]]:
        """Test numbers by client: of the pre-trained model, FedAvg's, and FL-GAP's mean, own and fine-tuned models."""
        trained = self.pretrain_rounds + self.rounds
        last = int(self.own.summary["rounds"])
        return {
            "start": client_scores(self.own.path, self.pretrain_rounds, "global"),
            "FedAvg": client_scores(self.average.path, trained, "global"),
            "mean": client_scores(self.own.path, trained, "global"),
            "own": client_scores(self.own.path, trained, "personal"),
            "tuned": client_scores(self.own.path, last, "personal"),
        }

    def neighbours(self) -> dict[ClientId, list[ClientId]]:
        """Who was mixed with whom in the last round of training."""
        rows = self.own.state.rows
        return {client: [i for i in rows[client]["link"]["neighbours"].tolist() if i >= 0] for client in rows}

    def agreement(self, labels: Sequence[str]) -> dict[str, float]:
        """Share of neighbours that have the client's own label, and what choosing at random would give."""
        hits = [labels[i] == labels[client] for client, others in self.neighbours().items() for i in others]
        pairs = sum(labels.count(label) - 1 for label in labels) / (len(labels) * (len(labels) - 1))
        return {"found": float(np.mean(hits)), "at_random": pairs}

    def open_groups(self) -> list[float]:
        """Mean |U| over clients in each round of training."""
        lines, _ = read_lines(self.own.path / "metrics.jsonl")
        return [numbers(x, "train")["train/open_groups"] for x in lines if x.get("event") == "round" and x["phase"] == "train"]

    def upload_mb(self) -> dict[str, float]:
        """MB (10^6 bytes) that all clients sent together during training, and what whole models would be."""
        sent = {}
        for name, finish in (("fedavg", self.average), ("fl_gap", self.own)):
            lines, _ = read_lines(finish.path / "wire.jsonl")
            sent[name] = sum(number(x, "bytes") for x in lines if x["direction"] == "up" and x["phase"] == "train") / 1e6
        model = 4 * (num_elements(self.net.params) + num_elements(self.net.buffers))
        return {**sent, "whole_models": model * len(self.names) * self.rounds / 1e6}

    def comparison(self) -> dict[str, float | None]:
        """FL-GAP's fine-tuned models against FedAvg's at the end, and FedAvg when it had sent no more than FL-GAP did."""
        scores, sent = self.scores(), self.upload_mb()
        both = scores["tuned"].keys() & scores["FedAvg"].keys()
        gains = [scores["tuned"][client]["auroc"] - scores["FedAvg"][client]["auroc"] for client in sorted(both)]
        rounds = max(1, int(sent["fl_gap"] / sent["fedavg"] * self.rounds))
        sooner = client_scores(self.average.path, self.pretrain_rounds + rounds, "global")
        return {
            "auroc_gain": float(np.nanmean(gains)),
            "clients_better": sum(gain > 0 for gain in gains),
            "rounds_at_same_upload": rounds,
            "fedavg_auroc_at_same_upload": float(np.nanmean([v["auroc"] for v in sooner.values()])) if sooner else None,
        }

    def facts(self) -> dict[str, Any]:
        return {
            "scores": {
                model: {metric: float(np.nanmean([v[metric] for v in found.values()])) for metric in ("auroc", "accuracy")}
                for model, found in self.scores().items()
                if found
            },
            "upload_mb": self.upload_mb(),
            "against_fedavg": self.comparison(),
            "open_groups": self.open_groups(),
            "neighbours": {self.names[client]: [self.names[i] for i in near] for client, near in self.neighbours().items()},
            "same_forgery": self.agreement(self.scene.forgeries),
            "same_camera": self.agreement(self.scene.cameras),
        }

    def show(self, console: Console) -> None:
        facts, scores, near = self.facts(), self.scores(), self.neighbours()
        table = Printed(title="AUROC in % on each client's test part", pad_edge=False)
        for column in ("client", *scores, "neighbours"):
            table.add_column(column)
        for client, name in enumerate(self.names):
            cells = [_percent(found.get(client), "auroc") for found in scores.values()]
            table.add_row(name, *cells, ", ".join(self.names[i] for i in near[client]))
        for label, metric in (("mean", "auroc"), ("accuracy", "accuracy")):
            table.add_row(label, *(_percent(facts["scores"].get(model), metric) for model in scores), style="bold")
        console.print(table)
        console.print("start: pre-trained; mean, own, tuned: FL-GAP's mean of all models, each client's own, after fine-tuning")
        mb, forgery, camera = facts["upload_mb"], facts["same_forgery"], facts["same_camera"]
        saved = round(1 - mb["fl_gap"] / mb["fedavg"], 2) + 0.0  # + 0.0: never "-0%"
        console.print(f"Upload: FL-GAP {mb['fl_gap']:.2f} MB, FedAvg (whole models) {mb['fedavg']:.2f} MB: {saved:.0%} saved")
        found = facts["against_fedavg"]
        console.print(
            f"Tuned against FedAvg, one seed: {100 * found['auroc_gain']:+.1f} points of AUROC, "
            f"better on {found['clients_better']} of {len(self.names)} clients"
        )
        sooner = found["fedavg_auroc_at_same_upload"]
        console.print(
            f"FedAvg with FL-GAP's upload ({found['rounds_at_same_upload']} of its {self.rounds} rounds): "
            + ("not evaluated" if sooner is None else f"{100 * sooner:.1f}, against {100 * facts['scores']['tuned']['auroc']:.1f}")
        )
        console.print(f"Open groups per round, of {len(self.net.groups)}: " + " ".join(f"{x:.1f}" for x in facts["open_groups"]))
        console.print(f"Neighbours with the same forgery: {forgery['found']:.0%} (at random {forgery['at_random']:.0%})")
        if len(set(zip(self.scene.forgeries, self.scene.cameras, strict=True))) > len(set(self.scene.forgeries)):
            console.print(f"Neighbours with the same camera: {camera['found']:.0%} (at random {camera['at_random']:.0%})")


def _percent(found: Mapping[str, float] | None, metric: str) -> str:
    return f"{100 * found[metric]:.1f}" if found else "-"


def client_scores(path: Path, round: int, model: str) -> dict[ClientId, Mapping[str, float]]:
    """Test numbers by client from a run's clients.csv, of the last evaluation up to this round."""
    with (path / "clients.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["split"]) == (model, "test")]
    last = max((int(row["round"]) for row in rows if int(row["round"]) <= round), default=0)
    chosen = [row for row in rows if int(row["round"]) == last]
    return {int(row["client"]): {name: float(row[name] or "nan") for name in ("auroc", "accuracy")} for row in chosen}
