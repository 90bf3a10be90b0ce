"""The same work for pfl-research's simulator, in one process.

Its own evaluation also passes over the training data before and after local training, so it is left out here, and a callback
evaluates every client's test part instead.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from speed import accuracy_by_hand, as_module, build_data, build_net, cohort_of


class Module(torch.nn.Module):
    """A net with the two functions that pfl looks for."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.inner.train()
        return F.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"accuracy": Weighted(accuracy_by_hand(self.inner, x, y) * len(x), len(x))}


class Evaluating(TrainingProcessCallback):
    """Every client's test part after every round, and how long the round took."""

    def __init__(self, case: Any, seconds: list[float], x: torch.Tensor, y: torch.Tensor) -> None:
        self.case, self.seconds, self.x, self.y = case, seconds, x, y
        self.began = time.perf_counter()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        for client in cohort_of(self.case, central_iteration):
            first = client * (self.case.train + self.case.test) + self.case.train
            model.evaluate(Dataset([self.x[first : first + self.case.test], self.y[first : first + self.case.test]]))
        self.seconds.append(time.perf_counter() - self.began)
        self.began = time.perf_counter()
        return False, Metrics()


def simulate(case: Any, device: str, rounds: int) -> list[float]:
    seconds: list[float] = []
    x, y = (column.to(device) for column in build_data(case))
    size = case.train + case.test
    users = FederatedDataset(
        lambda user: Dataset([x[user * size : user * size + case.train], y[user * size : user * size + case.train]], user_id=str(user)),
        iter(np.concatenate([cohort_of(case, round) for round in range(rounds + 1)]).tolist()).__next__,
    )
    module = Module(as_module(build_net(case))).to(device)
    model = PyTorchModel(module, partial(torch.optim.SGD, momentum=0.9), torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10 * rounds, train_cohort_size=case.cohort or case.clients, val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.05, local_batch_size=case.batch, local_max_grad_norm=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=case.test),
        callbacks=[Evaluating(case, seconds, x, y)],
    )  # fmt: skip
    return seconds
