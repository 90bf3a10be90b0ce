"""FL-GAP, walking: detectors of forged faces that differ from client to client, against FedAvg from the same start."""

from __future__ import annotations

import csv
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Printed
from torch import nn

from coterie.data import Assignment, Population, Table, View, load, make_population
from coterie.data.procedural_faces import DOMAINS, FORGERIES, procedural_faces
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
from coterie.randomness import Key
from coterie.recipes.session import Session, seeded
from coterie.states import ClientId
from coterie.tensors import num_elements

PUBLIC_CAMERA = "studio"
CLIENT_FORGERIES = ("lowres", "checker", "double", "smooth")


def walk_fl_gap(
    session: Session, *, rounds: int = 15, data: Literal["procedural", "faces"] = "procedural", people: int = 100,
    public_people: int = 200, pretrain_rounds: int = 8, personal_rounds: int = 3, lr: float = 0.02, epochs: int = 1,
    batch_size: int = 32, knn: int = 2, metric: Literal["euclidean", "cosine"] = "euclidean",
    rule: Literal["hysteresis", "literal"] = "hysteresis", eps_imp: float = 1e-3, eps_gap: float = 0.1, start_open: int = 3,
    lambda_prox: float = 1e-3, cameras: tuple[str, ...] = ("phone", "webcam", "night"), data_dir: str | None = None,
) -> None:  # fmt: skip
    """FL-GAP and FedAvg from one pre-trained detector of forged faces: accuracy, upload, and who neighbours whom.

    --data faces   real pictures (fair pairs) from the folder that COTERIE_DATA names, instead of drawn ones
    --people 100    drawn persons per client
    """
    seed = session.settings.seed
    population, forgeries = drawn(people, public_people, cameras, seed) if data == "procedural" else photographed(seed, data_dir)
    size = int(population.parts[0].train.columns["x"].shape[-1])
    training = Training(optim=SGD(lr=lr, momentum=0.9, weight_decay=5e-4), epochs=epochs, batch_size=batch_size)
    pretraining = Training(optim=SGD(lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="cosine_round"), batch_size=batch_size)
    policy = Policy(rule=rule, eps_imp=eps_imp, eps_gap=eps_gap, open_at_start=start_open)
    own = fl_gap(
        rounds=rounds, input_shape=(3, size, size), training=training, policy=policy, lambda_prox=lambda_prox, knn=knn,
        metric=metric, pretrain_rounds=pretrain_rounds, pretraining=pretraining, personal_rounds=personal_rounds,
    )  # fmt: skip
    average: Plan = (
        Phase("pretrain", pretrain_rounds, Pretrain(training=pretraining), Nobody()),
        Phase("train", rounds, FedAvg(training=training)),
    )
    net = seeded(seed, detector)
    found = {
        name: session.run(plan, population, net=net, metric=BinaryDetection(), method=name, name=name)
        for name, plan in (("fedavg", average), ("fl_gap", own))
    }
    walk = Walk(found["fl_gap"], found["fedavg"], population, forgeries, net, pretrain_rounds, rounds)
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


def drawn(people: int, public_people: int, cameras: tuple[str, ...], seed: int) -> tuple[Population, tuple[str, ...]]:
    """Three clients per forgery, whose cameras take turns; the server has all forgeries, by a camera that no client has."""
    clients = [(f, cameras[place % len(cameras)], people) for f in CLIENT_FORGERIES for place in range(3)]
    table = procedural_faces(seed=seed, people=[*clients, *((f, PUBLIC_CAMERA, public_people) for f in FORGERIES)])
    block = np.array([int(group.split("-")[0]) for group in table.column("group")])
    rows = tuple(np.flatnonzero(block == place) for place in range(len(clients)))
    names = tuple(f"{f}/{d}" if len(cameras) == 3 else f"{f}/{d}{place % 3 + 1}" for place, (f, d, _) in enumerate(clients))
    assignment = Assignment(rows, names, "three clients per forgery")
    return with_public(table, assignment, np.flatnonzero(block >= len(clients)), seed), tuple(f for f, _, _ in clients)


def photographed(seed: int, data_dir: str | None, per_kind: int = 4) -> tuple[Population, tuple[str, ...]]:
    """Four clients with FaceApp stills and four with DeepFaceLab frames; the server has StyleGAN stills and other photos.

    Only pairs that can't be told apart by file or camera are at clients; a photo and its forgery stay together.
    """
    table = load("faces", data_dir, pairs="all", size=64)
    group, kind = table.column("group"), np.char.add(np.char.add(table.column("domain"), "/"), table.column("method"))
    edited = np.isin(group, group[kind == "stills/faceapp"]) & np.isin(kind, ("stills/real", "stills/faceapp"))
    video = np.isin(kind, ("video/real", "video/deepfacelab"))
    rows: list[Any] = []
    names: list[str] = []
    for forgery, chosen in (("faceapp", edited), ("deepfacelab", video)):
        order = Key(seed, ("faces", forgery)).numpy().permutation(np.unique(group[chosen]))
        for client in range(per_kind):
            rows.append(np.flatnonzero(chosen & np.isin(group, order[client::per_kind])))
            names.append(f"{forgery}/{client}")
    owned = np.isin(group, group[np.concatenate(rows)])
    photos = Key(seed, ("faces", "public")).numpy().permutation(np.flatnonzero((kind == "stills/real") & ~owned))
    fakes = np.flatnonzero((kind == "stills/stylegan") & ~owned)
    public = np.concatenate([photos[: len(fakes)], fakes])
    assignment = Assignment(tuple(rows), tuple(names), f"{per_kind} clients per forgery, groups kept together")
    return with_public(table, assignment, public, seed), tuple(name.split("/")[0] for name in names)


def with_public(table: Table, assignment: Assignment, public: Any, seed: int) -> Population:
    view = View(table.columns, torch.from_numpy(public), table.decode)
    return make_population(
        table, assignment, key=Key(seed, ("data",)), test_fraction=0.3, validation_fraction=0.2, public={"public": view}
    )


@dataclass(frozen=True, eq=False)
class Walk:
    """What the two runs say about the method: read from their folders and the server's rows."""

    own: Finish
    average: Finish
    population: Population
    forgeries: tuple[str, ...]  # of each client
    net: Net
    pretrain_rounds: int
    rounds: int

    def scores(self) -> dict[str, dict[ClientId, Mapping[str, float]]]:
        """Test numbers of each client: what each model is after which round."""
        trained = self.pretrain_rounds + self.rounds
        last = int(self.own.summary["rounds"])
        return {
            "pretrained": client_scores(self.own.path, self.pretrain_rounds, "global"),
            "fedavg": client_scores(self.average.path, trained, "global"),
            "mean of own models": client_scores(self.own.path, trained, "global"),
            "own, federated": client_scores(self.own.path, trained, "personal"),
            "own, fine-tuned": client_scores(self.own.path, last, "personal"),
        }

    def neighbours(self) -> dict[ClientId, list[ClientId]]:
        rows = self.own.state.rows
        return {client: [i for i in rows[client]["link"]["neighbours"].tolist() if i >= 0] for client in rows}

    def agreement(self, labels: tuple[str, ...]) -> tuple[float, float]:
        """Share of neighbours with the client's own label, and what choosing at random would give."""
        near = self.neighbours()
        hits = [labels[i] == labels[client] for client, others in near.items() for i in others]
        others = len(labels) - 1
        chance = sum(labels.count(label) - 1 for label in labels) / len(labels) / others
        return sum(hits) / max(len(hits), 1), chance

    def groups_per_round(self) -> list[float]:
        """Mean |U| over clients in each round of training."""
        lines = read_lines(self.own.path / "metrics.jsonl")
        return [x["train"]["train/open_groups"] for x in lines if x.get("event") == "round" and x["phase"] == "train"]

    def uploads(self) -> dict[str, float]:
        """MB (10^6 bytes) that all clients sent together during training, and what whole models would be."""
        sent = {}
        for name, finish in (("fedavg", self.average), ("fl_gap", self.own)):
            lines = read_lines(finish.path / "wire.jsonl")
            sent[name] = sum(x["bytes"] for x in lines if x["direction"] == "up" and x["phase"] == "train") / 1e6
        whole = 4 * (num_elements(self.net.params) + num_elements(self.net.buffers)) * len(self.population) * self.rounds
        return {**sent, "whole models": whole / 1e6}

    def facts(self) -> dict[str, Any]:
        names = self.population.names
        cameras = tuple(name.split("/")[1] for name in names)
        agreement, chance = self.agreement(self.forgeries)
        same_camera, camera_chance = self.agreement(cameras)
        return {
            "scores": {
                model: {
                    metric: sum(v[metric] for v in by_client.values()) / len(by_client) for metric in ("auroc", "accuracy")
                }
                for model, by_client in self.scores().items()
            },
            "upload_mb": self.uploads(),
            "groups_per_round": self.groups_per_round(),
            "neighbours": {names[client]: [names[i] for i in others] for client, others in self.neighbours().items()},
            "agreement": {"forgery": agreement, "chance": chance, "second": same_camera, "second_chance": camera_chance},
        }

    def show(self, console: Console) -> None:
        facts, scores, near = self.facts(), self.scores(), self.neighbours()
        table = Printed(title="AUROC (accuracy) on each client's test part")
        for column in ("client", *scores, "neighbours"):
            table.add_column(column)
        for client, name in enumerate(self.population.names):
            cells = [f"{v[client]['auroc']:.3f} ({v[client]['accuracy']:.2f})" for v in scores.values()]
            table.add_row(name, *cells, ", ".join(self.population.names[i] for i in near.get(client, [])))
        means = facts["scores"].values()
        table.add_row("mean", *(f"{v['auroc']:.3f} ({v['accuracy']:.2f})" for v in means), style="bold")
        console.print(table)
        mb, found = facts["upload_mb"], facts["agreement"]
        console.print(
            f"Upload: FL-GAP {mb['fl_gap']:.2f} MB, FedAvg {mb['fedavg']:.2f} MB "
            f"({100 * (1 - mb['fl_gap'] / mb['fedavg']):.0f} % saved; whole models {mb['whole models']:.2f} MB)"
        )
        console.print("Groups open per round, of 8: " + " ".join(f"{value:.1f}" for value in facts["groups_per_round"]))
        console.print(
            f"Neighbours with the same forgery: {100 * found['forgery']:.0f} % (at random {100 * found['chance']:.0f} %); "
            f"same camera or share: {100 * found['second']:.0f} % (at random {100 * found['second_chance']:.0f} %)"
        )


def client_scores(path: Path, round: int, model: str) -> dict[ClientId, Mapping[str, float]]:
    """Test numbers by client from a run's clients.csv."""
    with (path / "clients.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if (r["round"], r["model"], r["split"]) == (str(round), model, "test")]
    return {int(row["client"]): {name: float(row[name] or "nan") for name in ("auroc", "accuracy")} for row in rows}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
