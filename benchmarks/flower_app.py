"""The same work as a Flower app, for Flower's own simulation engine."""

from __future__ import annotations

import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def simulate(case: Any, rounds: int) -> list[float]:
    """Seconds of every round, on as many actors of one core as there are cores."""
    seconds: list[float] = []
    run_simulation(
        server_app=_server(case, rounds, seconds), client_app=_client(case), num_supernodes=case.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip
    return seconds


def _client(case: Any) -> ClientApp:
    app, known = ClientApp(), {}

    def here(context: Context, message: Message) -> tuple[Any, Any, Any, int]:
        from speed import as_module, build_data, build_net

        if not known:
            torch.set_num_threads(1)
            known["data"], known["module"] = build_data(case), as_module(build_net(case))
        known["module"].load_state_dict(message.content["arrays"].to_torch_state_dict())
        first = int(context.node_config["partition-id"]) * (case.train + case.test)
        return known["module"], *known["data"], first

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from speed import train_by_hand

        module, x, y, first = here(context, message)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        train_by_hand(module, optimizer, x[first : first + case.train], y[first : first + case.train], case.batch)
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": case.train})}
        return Message(content=RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        from speed import accuracy_by_hand

        module, x, y, first = here(context, message)
        rows = slice(first + case.train, first + case.train + case.test)
        metrics = MetricRecord({"accuracy": accuracy_by_hand(module, x[rows], y[rows]), "num-examples": case.test})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _server(case: Any, rounds: int, seconds: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from speed import as_module, build_net

        share = 1.0 if case.cohort is None else case.cohort / case.clients
        least = case.cohort or case.clients
        strategy = Timed(
            seconds, fraction_train=share, fraction_evaluate=share, min_train_nodes=least, min_evaluate_nodes=least,
            min_available_nodes=case.clients,
        )  # fmt: skip
        strategy.start(grid=grid, initial_arrays=ArrayRecord(as_module(build_net(case)).state_dict()), num_rounds=rounds)

    return app


class Timed(FedAvg):
    """FedAvg that writes down how long every round took, from sending for training to the evaluations' return."""

    def __init__(self, seconds: list[float], **values: Any) -> None:
        super().__init__(**values)
        self._seconds = seconds
        self._began = 0.0

    def configure_train(self, *arguments: Any, **values: Any) -> Any:
        self._began = time.perf_counter()
        return super().configure_train(*arguments, **values)

    def aggregate_evaluate(self, *arguments: Any, **values: Any) -> Any:
        found = super().aggregate_evaluate(*arguments, **values)
        self._seconds.append(time.perf_counter() - self._began)
        return found
