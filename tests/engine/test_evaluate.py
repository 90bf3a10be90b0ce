"""What is evaluated, on whom and when: the three models by hand, and evaluation that leaves no trace."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from by_hand import B1, B2, W1, W2, Weights, batches, cross_entropy, descend, farthest, logits, mean
from cases import Rota, Toy, clients_of, norm_net, weights_of

from coterie.data.examples import ClientParts, Population, View
from coterie.engine import answers
from coterie.engine.run import Finish, RunError, run
from coterie.engine.settings import Settings
from coterie.message import Message, Slot
from coterie.method import (
    SGD,
    Batch,
    ClientRun,
    Fixed,
    Hub,
    Method,
    Named,
    Net,
    PersonalRun,
    Phase,
    Predictor,
    Site,
    Train,
    Wrapper,
)
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg, Training, predictor
from coterie.methods.fedper import fedper
from coterie.methods.local import Local
from coterie.randomness import Draw
from coterie.states import ServerState
from coterie.tensors import Groups, Tensors, sub

TRAINING = Training(optim=SGD(lr=0.3), batch_size=8)
COHORTS = ((0, 2), (1, 2))  # client 3 never takes part


def table(finish: Finish) -> dict[tuple[int, str, str, int], dict[str, float]]:
    """clients.csv: (round, model, split, client) -> numbers."""
    with (finish.path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        (int(row["round"]), row["model"], row["split"], int(row["client"])): {n: float(row[n]) for n in ("accuracy", "loss", "examples")}
        for row in rows
    }


def score(model: Weights, client: int, split: str) -> dict[str, float]:
    columns = getattr(toy.population().parts[client], split).all_rows()
    scores, y = logits(model, columns["x"].double()), columns["y"]
    return {
        "accuracy": float((scores.argmax(1) == y).double().mean()), "loss": float(cross_entropy(scores, y)), "examples": len(y),
    }  # fmt: skip


def test_global_personal_and_local_are_what_they_are_called(tmp_path: Path) -> None:
    """FedPer by hand for two rounds: the mean encoder with one's own head (personal), or the encoder as it was trained (local)."""
    start, clients = weights_of(toy.net()), clients_of(toy.population())
    shared, heads = {n: start[n] for n in (W1, B1)}, [{n: start[n] for n in (W2, B2)}] * 4
    expected: dict[tuple[int, str, str, int], dict[str, float]] = {}
    for t, cohort in enumerate(COHORTS):
        trained = {}
        for k in cohort:
            x, y = clients[k]
            w, _ = descend({**shared, **heads[k]}, x, y, batches(t, k, len(y), 8, 1), 0.3)
            trained[k], heads[k] = {n: w[n] for n in (W1, B1)}, {n: w[n] for n in (W2, B2)}
        shared = mean(list(trained.values()), [len(clients[k][1]) for k in cohort])
        for split in ("validation", "test"):
            for k in range(4):
                expected[(t + 1, "personal", split, k)] = score({**shared, **heads[k]}, k, split)
                if k in cohort:
                    expected[(t + 1, "local", split, k)] = score({**trained[k], **heads[k]}, k, split)
    finish = Toy().run(fedper(rounds=2, training=TRAINING, cohort=Rota(COHORTS)), tmp_path / "run", precision="fp64")
    found = table(finish)
    assert found.keys() == expected.keys()
    for place, numbers in expected.items():
        assert found[place] == pytest.approx(numbers, abs=1e-10), place
    assert set(finish.clients) == {0, 1, 2}  # client 3 was evaluated, which gives it no row


def test_the_global_model_is_the_servers_on_every_clients_part_and_on_the_central_set(tmp_path: Path) -> None:
    population = toy.population()
    central = View(population.parts[0].train.columns, torch.arange(50))
    plan = (Phase("train", 1, FedAvg(training=TRAINING), Named((0, 1))),)
    finish = run(
        plan, replace(population, central_test=central), net=toy.net(), metric=Toy().metric, out=tmp_path / "run",
        settings=Settings(backend="loop", quiet=True, precision="fp64"),
    )  # fmt: skip
    model, found = finish.state.shared["shared"], table(finish)
    for k in range(4):
        for split in ("validation", "test"):
            assert found[(1, "global", split, k)] == pytest.approx(score(model, k, split), abs=1e-12)
            assert found[(1, "personal", split, k)] == found[(1, "global", split, k)]
    columns = central.all_rows()
    accuracy = float((logits(model, columns["x"].double()).argmax(1) == columns["y"]).double().mean())
    (line,) = [line for line in finish.evaluations if line["split"] == "central"]
    assert line["accuracy"] == pytest.approx(accuracy) and line["clients"] == 1
    assert finish.summary["results"]["global"]["accuracy"]["central"] == pytest.approx(accuracy)
    assert min(client for *_, client in found) == 0  # the central set is nobody's


@dataclass(frozen=True, kw_only=True)
class Differences(FedAvg):
    """FedAvg whose clients send what they changed instead of what they have."""

    def slots(self, hub: Hub) -> Mapping[str, Slot]:
        return {name: replace(slot, kind="change") for name, slot in super().slots(hub).items()}

    def client(self, mine: Groups, down: Message, site: Site) -> ClientRun:
        row, up = yield from super().client(mine, down, site)
        return row, up.with_(shared=sub(up["shared"], down["shared"]))


def test_the_local_model_of_a_method_that_sends_changes_is_the_trained_one(tmp_path: Path) -> None:
    found, expected = (
        table(Toy().run((Phase("train", 2, method, Named((0, 1))),), tmp_path / type(method).__name__, precision="fp64"))
        for method in (Differences(training=TRAINING), FedAvg(training=TRAINING))
    )
    assert found.keys() == expected.keys() and any(model == "local" for _, model, *_ in found)
    for place, numbers in expected.items():
        assert found[place] == pytest.approx(numbers, abs=1e-10)


# --- evaluation leaves no trace -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Careless(Wrapper):
    """Writes into everything that its evaluation was given, once the predictor is made."""

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        made = self.inner.personal(mine, down, site)
        assert isinstance(made, Predictor)
        kept = replace(made, params={g: {n: v.clone() for n, v in t.items()} for g, t in made.params.items()})
        for groups in (mine, down.groups):
            for tensors in groups.values():
                for value in tensors.values():
                    value.zero_()
        return kept


def test_rounds_are_the_same_with_and_without_evaluation(tmp_path: Path) -> None:
    plan = fedper(rounds=3, training=TRAINING, cohort=Rota(COHORTS))
    often, seldom, careless = (
        Toy().run(which, tmp_path / name, eval_every=every, precision="fp64")
        for name, which, every in (
            ("often", plan, 1), ("seldom", plan, 50), ("careless", tuple(replace(p, method=Careless(p.method)) for p in plan), 1),
        )
    )  # fmt: skip
    assert {line["round"] for line in often.evaluations} == {1, 2, 3} and {line["round"] for line in seldom.evaluations} == {3}
    for other in (seldom, careless):
        assert farthest(often.state.shared["shared"], other.state.shared["shared"]) == 0.0
        assert set(often.clients) == set(other.clients) == {0, 1, 2}
        for k in often.clients:
            assert farthest(often.clients[k]["private"], other.clients[k]["private"]) == 0.0
    assert table(often).keys() == table(careless).keys()


def test_every_nth_round_is_evaluated_and_the_last_always(tmp_path: Path) -> None:
    finish = Toy().run((Phase("train", 5, FedAvg()),), tmp_path / "run", eval_every=2)
    assert sorted({line["round"] for line in finish.evaluations}) == [2, 4, 5]
    assert {place[0] for place in table(finish)} == {2, 4, 5}


def noisy(params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
    return {"logits": batch["noise"]["z"]}


@dataclass(frozen=True, kw_only=True)
class Guessing(Method):
    def client(self, mine: Groups, down: Message, site: Site) -> tuple[Groups, Message]:
        return mine, Message()

    def personal(self, mine: Groups, down: Message, site: Site) -> Predictor:
        return Predictor(fn=noisy, params={}, noise={"z": Draw("normal", ("batch", toy.CLASSES))})


def test_a_predictors_noise_is_its_clients_own_and_the_same_in_every_round(tmp_path: Path) -> None:
    found = table(Toy().run((Phase("guess", 2, Guessing()),), tmp_path / "run"))
    losses = [found[(1, "personal", split, k)]["loss"] for split in ("validation", "test") for k in range(4)]
    assert losses == [found[(2, "personal", split, k)]["loss"] for split in ("validation", "test") for k in range(4)]
    assert len(set(losses)) == 8


@dataclass(frozen=True, kw_only=True)
class Cheating(Local):
    def personal(self, mine: Groups, down: Message, site: Site) -> PersonalRun:  # type: ignore[override]
        from coterie.methods.fedavg import Supervised, training_fields

        got = yield Train(  # type: ignore[misc]
            params={"own": mine["own"]}, loss=Supervised(("own",)), streams={"local": site.data.test}, **training_fields(self.training)  # type: ignore[arg-type]
        )
        return predictor(got.params, {})


def test_a_model_may_not_be_trained_to_be_evaluated(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"A Sweep can be asked here, found Train\. Ask with: yield from Sweep"):
        Toy().run((Phase("train", 1, Cheating(), Named((0,))),), tmp_path / "run", eval_clients="cohort", min_cohort=1)


# --- on whom -----------------------------------------------------------------------------------------------------------------------


def evaluated(finish: Finish, model: str = "personal") -> dict[int, list[int]]:
    found = defaultdict(list)
    for round, which, split, client in table(finish):
        if which == model and split == "test":
            found[round].append(client)
    return {round: sorted(clients) for round, clients in found.items()}


def test_the_cohort_or_some_clients(tmp_path: Path) -> None:
    plan = (Phase("train", 2, FedAvg(), Rota(COHORTS)),)
    assert evaluated(Toy().run(plan, tmp_path / "cohort", eval_clients="cohort")) == {1: [0, 2], 2: [1, 2]}
    some = Toy().run(plan, tmp_path / "some", eval_clients="2")
    assert len(evaluated(some)[1]) == 2 and evaluated(some)[1] == evaluated(some)[2]
    assert evaluated(some, "local")[1] == sorted(set(evaluated(some)[1]) & {0, 2})
    assert evaluated(Toy().run(plan, tmp_path / "more", eval_clients="9")) == {1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}


def crowd(size: int) -> Population:
    """Views on one small table: every client the same few rows."""
    columns = {"x": torch.randn(6, toy.FEATURES, generator=torch.Generator().manual_seed(0)), "y": torch.arange(6) % 3}
    parts = ClientParts(*(View(columns, torch.tensor(rows)) for rows in ([0, 1, 2], [3], [4, 5])))
    return Population("crowd", tuple(f"c{i}" for i in range(size)), [parts] * size, num_classes=toy.CLASSES)


def test_of_many_clients_a_fixed_200_are_evaluated_and_all_in_the_last_round(tmp_path: Path) -> None:
    settings = Settings(backend="loop", quiet=True)
    plan = (Phase("train", 3, FedAvg(), Fixed(2)),)
    finish = run(plan, crowd(230), net=toy.net(), metric=Toy().metric, out=tmp_path / "run", settings=settings)
    who = evaluated(finish, "global")
    assert len(who[1]) == 200 and who[1] == who[2] != list(range(200)) and who[3] == list(range(230))


# --- the best round ----------------------------------------------------------------------------------------------------------------


def test_the_best_round_is_chosen_on_validation_and_told_with_its_test_value(tmp_path: Path) -> None:
    """summary.json against means over clients.csv: first round with the best mean validation accuracy."""
    training = Training(optim=SGD(lr=1.0), epochs=2, batch_size=4)
    finish = Toy().run((Phase("train", 6, FedAvg(training=training)),), tmp_path / "run")
    found = table(finish)
    for model in ("global", "personal", "local"):
        means = {
            split: [np.mean([found[(t, model, split, k)]["accuracy"] for k in range(4)]) for t in range(1, 7)]
            for split in ("validation", "test")
        }
        best = int(np.argmax(means["validation"]))
        told = finish.summary["results"][model]["accuracy"]
        last = [found[(6, model, "test", k)]["accuracy"] for k in range(4)]
        assert told["best_round"] == best + 1 and told["best"] == pytest.approx(means["test"][best])
        assert told["last"] == told["mean"] == pytest.approx(np.mean(last)) and told["std"] == pytest.approx(np.std(last))
        assert told["worst10"] == pytest.approx(min(last))
        losses = [found[(6, model, "test", k)]["loss"] for k in range(4)]
        assert finish.summary["results"][model]["loss"]["worst10"] == pytest.approx(max(losses))
    assert json.loads((finish.path / "summary.json").read_text())["results"] == finish.summary["results"]


def test_the_shape_of_the_answer_of_a_state_is_not_changed_by_looking(tmp_path: Path) -> None:
    """global_model sees the committed state, rows included."""

    @dataclass(frozen=True, kw_only=True)
    class Looking(FedAvg):
        def global_model(self, state: ServerState, hub: Hub) -> Predictor | None:
            assert not state.rows and hub.round.index == 0
            return super().global_model(state, hub)

    Toy().run((Phase("train", 1, Looking()),), tmp_path / "run")


@pytest.mark.parametrize(("method", "models"), [(FedAvg, 1), (Ditto, 2)])
def test_one_model_under_two_names_is_evaluated_once(
    method: type[FedAvg], models: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg's clients deploy the server's model: its numbers stand under both names."""
    sweeps: list[int] = []
    sweep = answers.sweep
    monkeypatch.setattr(answers, "sweep", lambda ask, *rest: (sweeps.append(len(ask.streams["local"])), sweep(ask, *rest))[1])
    plan = (Phase("train", 1, method(training=TRAINING)),)
    results = Toy(net=norm_net).run(plan, tmp_path / "run", eval_every=1).summary["results"]
    assert len(sweeps) == 4 * 2 * (models + 1)  # clients, validation and test, and the model of each client's own training
    assert (results["global"] == results["personal"]) == (models == 1)


@dataclass(frozen=True)
class Scaled:
    factors: torch.Tensor

    def __call__(self, params: Groups, buffers: Groups, refs: Groups, batch: Batch, net: Net) -> Tensors:
        return {"logits": net.apply(params["shared"], {}, batch["local"], train=False)[0] * self.factors}


class Scaling(FedAvg):
    """Its predictors hold a tensor each, whose equality is no single truth."""

    def global_model(self, state: ServerState, hub: Hub) -> Predictor:
        return scaled(super().global_model(state, hub))

    def personal(self, mine: Groups, down: Message, site: Site) -> PersonalRun:
        return scaled(super().personal(mine, down, site))


def scaled(predictor: object) -> Predictor:
    assert isinstance(predictor, Predictor)
    return replace(predictor, fn=Scaled(torch.tensor([1.0, 2.0, 1.0])))


def test_a_predictor_that_holds_a_tensor_is_evaluated(tmp_path: Path) -> None:
    results = Toy().run((Phase("train", 1, Scaling(training=TRAINING)),), tmp_path / "run").summary["results"]
    assert results["personal"] == results["global"]
