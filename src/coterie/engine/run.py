"""A whole run: phases and rounds, logs, evaluation, checkpoints, resume."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.attacks.poison import Attack
from coterie.data.examples import Population
from coterie.engine.answers import Context, conclude
from coterie.engine.backend import Backend, EvaluateJob, World
from coterie.engine.check import check_history, check_same, check_world
from coterie.engine.checkpoint import CheckpointStore, Progress, commit
from coterie.engine.choose import choose_backend
from coterie.engine.client import Failure, failure
from coterie.engine.devices import main_device, prepared, set_precision
from coterie.engine.evaluate import score_predictor
from coterie.engine.folder import RunFolder, evaluation_lines, plain, read_json, write_json
from coterie.engine.horizon import Horizon
from coterie.engine.poisoning import honest_only, poisoned, told_of, told_of_run
from coterie.engine.record import chosen, client_rows, describe
from coterie.engine.round import RoundRunner
from coterie.engine.round_result import RoundResult, Rules, TooFew
from coterie.engine.rows import hub_of, row_of, with_server_rows
from coterie.engine.settings import Settings
from coterie.engine.spending import Account
from coterie.engine.summary import summarise_run
from coterie.engine.switch import Switch
from coterie.engine.transcript import Recorder
from coterie.engine.watcher import Silent, Watcher
from coterie.engine.wire import WAYS
from coterie.method import Phase, Plan, Round
from coterie.metrics.metric import Metric
from coterie.models.net import Net
from coterie.privacy.guards import Guards
from coterie.randomness import Key
from coterie.reduce.mean import Mean
from coterie.reduce.seam import Reduce
from coterie.states import ClientId, ServerState

_EVALUATED_BY_DEFAULT = 200


@dataclass(frozen=True)
class Finish:
    """A finished run: where it is, and its summary."""

    path: Path
    summary: dict[str, Any]
    state: ServerState
    clients: Mapping[ClientId, Any]

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that hold scores, in the order of the rounds."""
        lines = (json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "split" in line]


class RunError(RuntimeError):
    """A run that can't go on; everything up to the last whole round is saved."""


class Runner:
    """Drives one plan in one folder."""

    def __init__(
        self, plan: Plan, population: Population, net: Net, metric: Metric, path: Path, *, guards: Guards,
        reduce: Reduce, attack: Attack | None, settings: Settings, watcher: Watcher, about: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.settings, self.guards, self.watcher, self.about = settings, guards, watcher, about
        device, dtype = main_device(settings.devices, settings.backend), set_precision(settings.precision)
        whole = placed(poisoned(population, attack, settings.seed), device, dtype)
        self.world = World(plan, whole, prepared(net, device, settings.precision), metric, settings.seed, reduce, attack)
        self.device = device
        sizes = [len(parts.train) for parts in population.parts]
        self.choice = choose_backend(settings, plan, net.params, sizes)
        self.total = sum(phase.rounds for phase in plan)
        self.path = path
        self.folder = RunFolder(path, list(metric.directions))
        self.recorder = Recorder(path, settings.record_messages)
        limit = None if settings.row_memory_mb is None else int(settings.row_memory_mb * 1e6)
        self.store = CheckpointStore(path / "checkpoint", limit, device)
        self.state = ServerState({}, self.store.server)
        self.progress = Progress()
        self.bytes_total = 0
        self.cohort_size = 0  # of the last round
        self.training = 0.0  # its seconds until it was evaluated
        self.account = Account(path, guards, len(population), attacked=attack is not None)
        self.horizon = Horizon(self.world, self.account)
        check_world(self.world, guards, settings)

    def start(self, *, resume: bool) -> None:
        record = describe(self.world, self.settings, self.guards, self.choice, self.device, self.total, self.about)
        if resume and self.store.exists():
            if (before := self.folder.described()) is not None:
                check_same(before, plain(record))
            self.state, self.progress, problems = self.store.load()
            self.folder.cut_back(self.progress.log_sizes)
            check_history(self.world.plan, self.folder.read("metrics.jsonl"))
            self.bytes_total = sum(line["bytes"] for line in self.folder.read("wire.jsonl"))
            for problem in problems:
                self.event({"event": "warning", "text": problem})
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            self.folder.begin()
        self.recorder.begin(self.progress.round)
        self.account.load(self.progress.attempts)
        if self.progress.round < self.total:
            (self.path / "summary.json").unlink(missing_ok=True)  # of a run with fewer rounds, which now goes on
        write_json(self.path / "run.json", record)
        if (missing := self.account.missing(phase.cohort for phase in self.world.plan)) is not None:
            self.watcher.note(missing)

    def run(self) -> Finish:
        if self.progress.round == self.total or self.horizon.stops_before(self.progress.round, self.progress.round):
            return self.finish()
        switch = Switch(self.world, self.settings, self.choice)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads)
        try:
            first = 0
            for phase in self.world.plan:
                for index in range(max(first, self.progress.round), first + phase.rounds):
                    if self.horizon.stops_before(index, index):
                        return self.finish()
                    self.one_round(switch.backend, phase, first, index)
                    self.reconsider(switch, left=first + phase.rounds - index - 1)
                first += phase.rounds
        except KeyboardInterrupt:
            self.watcher.note(f"Stopped; {self.store.saved} of {self.total} rounds are saved.")
            raise
        finally:
            switch.close()
            torch.set_num_threads(threads)
            self.store.close()
        return self.finish()

    def reconsider(self, switch: Switch, *, left: int) -> None:
        """Another backend takes over where the last rounds say that it pays: the numbers are the same."""
        told = switch.after(training=self.training, seconds=self.progress.seconds[-1], clients=self.cohort_size, left=left)
        if told is None:
            return
        self.choice = switch.choice
        write_json(self.path / "run.json", {**read_json(self.path / "run.json"), **chosen(self.choice)})
        self.watcher.note(told)

    def one_round(self, backend: Backend, phase: Phase, first: int, index: int) -> None:
        started = time.perf_counter()
        used_clip = self.guards.at(self.progress.clip).clip
        result, lost = self.attempt(backend, phase, first, index)
        self.training = time.perf_counter() - started
        round = self.horizon.round_at(index, result.returned)
        self.state = commit(self.store, result.state, result.rows, index + 1)
        self.progress.delivered = result.delivered
        self.progress.clip = result.clip or self.progress.clip
        self.cohort_size = len(result.returned) + len(result.left_out)
        scores, unscored = self.evaluate(backend, phase, round, result) if self.evaluated(index) else ({}, {})
        head = {"round": index + 1, "phase": phase.name}
        lines = evaluation_lines(honest_only(scores, self.world.attackers), self.world.metric.directions, head)
        ledgers = [*(few.result.ledger for few in lost), result.ledger]  # what a repeated round sent has crossed all the same
        up, down = (sum(ledger.total(way) for ledger in ledgers) for way in WAYS)
        self.bytes_total += up + down
        seconds = time.perf_counter() - started
        told = self.of_clients(head, "client_left_out", result.left_out)
        told += self.of_clients(head, "client_not_evaluated", unscored.items())
        void: list[dict[str, Any]] = [] if result.void is None else [{**head, "event": "round_void", "reason": result.void}]
        repeated = [line for few in lost for line in self.lost(head, few)]
        spent = self.account.told()
        numbers = _means(result.metrics)
        self.folder.lines("wire.jsonl", [entry for ledger in ledgers for entry in ledger.entries()])
        self.folder.lines("metrics.jsonl", [*lines, *repeated, *void, *told, {
            **head, "event": "round", "seconds": seconds, "bytes_up": up, "bytes_down": down,
            "cohort": self.cohort_size, "returned": len(result.returned),
            "train_loss": next((v for n, v in numbers.items() if n.endswith("/objective")), None), "train": numbers,
            "kept_bytes": result.kept_bytes, **told_of(result.tampered), **({"clip": used_clip} if self.guards.follows else {}),
            **({"secure_sum": result.secure} if result.secure else {}), **spent,
        }])  # fmt: skip
        self.recorder.commit()
        self.folder.clients(client_rows(scores, self.world.population, index + 1))
        self.progress.round = index + 1
        self.progress.seconds.append(seconds)
        if (index + 1) % self.settings.checkpoint_every == 0 or self.horizon.ends_with(index, self.progress.round):
            self.progress.attempts = self.account.attempts
            self.progress.log_sizes = self.folder.sizes()
            self.store.save(self.state, self.progress)
        for line in void:
            self.watcher.note(line["reason"])
        for line in told:
            what = line["event"].removeprefix("client_").replace("_", " ")
            self.watcher.note(f"Round {index + 1}: client {line['client']} {what}: {line['reason']}")
        for text in backend.remarks():
            self.watcher.note(text)
        if (epsilon := spent.get("epsilon", {}).get(self.account.spending.headline())) is not None:
            self.watcher.spent(epsilon)
        self.watcher.round(index + 1, phase.name, seconds, self.headline(lines), self.bytes_total)

    def of_clients(
        self, head: Mapping[str, Any], event: str, failures: Iterable[tuple[ClientId, Failure]]
    ) -> list[dict[str, Any]]:
        names = self.world.population.names
        return [{**head, "event": event, "client": c, "name": names[c], "reason": failure.reason} for c, failure in failures]

    def lost(self, head: Mapping[str, Any], few: TooFew) -> list[dict[str, Any]]:
        """What is told of a round that had too few clients."""
        return [*self.of_clients(head, "client_left_out", few.result.left_out), {**head, "event": "round_repeated", "reason": str(few)}]

    def attempt(self, backend: Backend, phase: Phase, first: int, index: int) -> tuple[RoundResult, list[TooFew]]:
        """The round, repeated with a new cohort when too few come back (never under noise: it counts as spent)."""
        attempts = 1 if self.guards.private else self.settings.max_attempts
        guards = self.guards.at(self.progress.clip)
        rules = Rules(guards, max(self.settings.min_cohort, guards.least), self.settings.norm_ratio, self.guards.clip)
        lost: list[TooFew] = []
        for attempt in range(attempts):
            key = Key(self.guards.cohort_seed(self.settings.seed), ("cohort", index, *(("attempt", attempt) if attempt else ())))
            cohort = phase.cohort.draw(len(self.world.population), key)
            round = self.horizon.round_at(index, cohort)
            state = with_new_groups(self.state, phase.method.server_state(hub_of(self.world, round)))
            fresh = frozenset(c for c in cohort if (self.store.clients.version(c) or 0) <= first)
            local = frozenset(cohort if self.evaluated(index) else ()) & self.chosen(round, cohort)
            delivered = lost[-1].result.delivered if lost else self.progress.delivered
            runner = RoundRunner(
                self.world, backend, rules, round, state, self.store.clients, fresh, delivered,
                attempt=attempt, evaluate_local=local, tape=self.recorder.tape(index, phase.name, attempt),
            )  # fmt: skip
            ticket = self.account.begin(self.account.planned(index + 1, phase.cohort, cohort, runner.slots))
            try:
                result = runner.run()
                self.account.end(ticket, result.sent)
                return result, lost
            except TooFew as few:
                self.account.end(ticket, few.result.sent)
                lost.append(few)
                for client, failure in few.result.left_out:
                    self.watcher.note(f"Round {index + 1}: client {client} left out: {failure.reason}")
        last, failures = lost[-1], lost[-1].result.left_out
        reasons = "; ".join(f"client {client} {failure.reason.rstrip('.')}" for client, failure in failures[:3])
        head = {"round": index + 1, "phase": phase.name}
        self.folder.lines("metrics.jsonl", self.of_clients(head, "client_left_out", failures))
        cause = next((failure.error for _, failure in failures if failure.error is not None), None)
        raise RunError(
            f"{last} Tried {attempts} time{'' if attempts == 1 else 's'}{': ' if reasons else ''}{reasons}. "
            f"{self.store.saved} rounds are saved; mend the cause and resume the run."
        ) from cause

    def evaluate(
        self, backend: Backend, phase: Phase, round: Round, result: RoundResult
    ) -> tuple[dict[tuple[str, str], dict[ClientId, dict[str, float]]], dict[ClientId, Failure]]:
        """(model, split) -> client -> metrics, for the models global, personal and local; and who can't be evaluated."""
        scores: dict[tuple[str, str], dict[ClientId, dict[str, float]]] = {}
        failed: dict[ClientId, Failure] = {}
        clients = tuple(sorted(self.chosen(round, round.cohort)))
        hub = hub_of(self.world, round)
        state = with_server_rows(phase.method, self.state, clients, hub)

        predictor = phase.method.global_model(state, hub)

        def jobs() -> Iterator[EvaluateJob]:
            for client in clients:
                fresh = (self.store.clients.version(client) or 0) <= round.index - round.phase_index
                try:
                    row = row_of(self.world, phase.method, self.store.clients, client, round, state, fresh=fresh)
                except Exception as error:  # a first row may be made of the client's data
                    failed[client] = failure(error)
                    continue
                yield EvaluateJob(client, round, state.public, row, phase.method.send(state, client, hub), predictor)

        for client, found in backend.evaluate(jobs()):
            if isinstance(found, Failure):
                failed[client] = found
                continue
            for model, splits in found.items():
                for split, values in splits.items():
                    scores.setdefault((model, split), {})[client] = values
        if failed and len(failed) == len(clients):
            client, why = next(iter(failed.items()))
            raise RunError(
                f"No client could be evaluated after round {round.index + 1}: client {client} {why.reason.rstrip('.')}. "
                f"{self.store.saved} rounds are saved; mend the cause and resume the run."
            ) from why.error
        for client, own in result.local.items():
            for split, numbers in own.items():
                scores.setdefault(("local", split), {})[client] = dict(numbers)
        central = self.world.population.central_test
        if predictor is not None and central is not None:
            context = Context(self.world.net, round, Key(self.settings.seed, ("evaluate", "central")))
            scores[("global", "central")] = {-1: conclude(score_predictor(predictor, central, context, self.world.metric))}
        return {where: dict(sorted(by_client.items())) for where, by_client in scores.items()}, dict(sorted(failed.items()))

    def evaluated(self, index: int) -> bool:
        return (index + 1) % self.settings.eval_every == 0 or self.horizon.ends_with(index, self.progress.round)

    def chosen(self, round: Round, cohort: tuple[ClientId, ...]) -> frozenset[ClientId]:
        """Who is evaluated: the same clients every round, and everybody in the last one."""
        count = len(self.world.population)
        which = self.settings.eval_clients
        if which == "cohort":
            return frozenset(cohort)
        size = min(count, _EVALUATED_BY_DEFAULT) if which == "all" else min(count, int(which))
        if size == count or (which == "all" and self.horizon.ends_with(round.index, self.progress.round)):
            return frozenset(range(count))
        chosen = Key(self.settings.seed, ("evaluated",)).numpy().choice(count, size, replace=False)
        return frozenset(int(client) for client in chosen)

    def headline(self, lines: list[dict[str, Any]]) -> float | None:
        """The main metric of the model that the run is about."""
        tests = {line["model"]: line[self.world.metric.main] for line in lines if line["split"] == "test"}
        found: float | None = tests.get("personal", tests.get("global"))
        return found

    def stopped(self) -> str | None:
        """Why the run ended before its plan did."""
        at = self.progress.round
        return None if at == self.total else f"Stopped after round {at} of {self.total}: {self.account.why_stopped()}"

    def event(self, line: Mapping[str, Any]) -> None:
        self.folder.lines("metrics.jsonl", [line])
        self.watcher.note(str(line.get("text", line)))

    def finish(self) -> Finish:
        if (stopped := self.stopped()) is not None:
            self.watcher.note(stopped)
        summary = summarise_run(
            self.folder, self.world.metric, about=self.about, seed=self.settings.seed, rounds=self.progress.round,
            clients=len(self.world.population), seconds=self.progress.seconds, backend=self.choice.backend,
            privacy=self.account.summary(), secure=self.guards.secure, stopped=stopped,
        )  # fmt: skip
        summary = told_of_run(summary, self.world, self.folder.read("metrics.jsonl"))
        write_json(self.path / "summary.json", summary)
        return Finish(self.path, summary, self.state, self.store.clients)


def run(
    plan: Plan, population: Population, *, net: Net, metric: Metric, out: Path | str, guards: Guards = Guards(),
    reduce: Reduce = Mean(), attack: Attack | None = None, settings: Settings = Settings(), watcher: Watcher | None = None,
    about: Mapping[str, Any] | None = None, resume: bool = False,
) -> Finish:  # fmt: skip
    """Run a plan over a population and leave a run folder at `out`. With an `attack` some clients poison the run."""
    path = Path(out)
    if not resume and path.exists() and any(path.iterdir()):
        raise ValueError(f"The folder '{path}' is not empty. Choose another --out, or go on with: coterie run --resume {path}")
    runner = Runner(
        plan, population, net, metric, path, guards=guards, reduce=reduce, attack=attack, settings=settings,
        watcher=watcher or Silent(), about=about or {},
    )  # fmt: skip
    runner.start(resume=resume)
    return runner.run()


def with_new_groups(state: ServerState, first: Mapping[str, Any]) -> ServerState:
    """The first values of groups that no earlier phase has left behind."""
    return state.with_shared(**{name: group for name, group in first.items() if name not in state.shared})


def placed(population: Population, device: torch.device, dtype: torch.dtype) -> Population:
    """The population with its columns on the device, floats in the run's precision."""
    floats = {column.dtype for table in population.tables() for column in table.values() if column.is_floating_point()}
    if device.type == "cpu" and dtype == torch.float32 and floats <= {dtype}:
        return population
    decoded = None if dtype == torch.float32 else dtype
    return population.moved(lambda c: c.to(device, dtype if c.is_floating_point() else None), decoded=decoded)


def _means(rows: list[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: sum(found) / len(found) for name in names if (found := [row[name] for row in rows if name in row])}
