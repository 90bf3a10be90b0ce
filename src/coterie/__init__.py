"""Coterie: personalised and private federated learning, from paper to deployment.

The names below are loaded when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.engine.run import Finish as Finish
    from coterie.engine.run import run as run
    from coterie.engine.settings import Settings as Settings
    from coterie.method import SGD as SGD
    from coterie.method import Adam as Adam
    from coterie.method import Poisson as Poisson
    from coterie.methods.fedavg import Training as Training
    from coterie.metrics import Classification as Classification
    from coterie.models.nets import cnn2 as cnn2
    from coterie.models.nets import mlp as mlp
    from coterie.models.nets import resnet8 as resnet8
    from coterie.models.nets import resnet18 as resnet18
    from coterie.privacy.accountant import Budget as Budget
    from coterie.privacy.guards import Guards as Guards
    from coterie.recipes.population import build_population as build_population
    from coterie.recipes.session import seeded as seeded
    from coterie.report.page import write_report as write_report

__version__ = "0.1.0"

_HOME = {
    "Adam": "coterie.method",
    "Budget": "coterie.privacy.accountant",
    "Classification": "coterie.metrics",
    "Finish": "coterie.engine.run",
    "Guards": "coterie.privacy.guards",
    "Poisson": "coterie.method",
    "SGD": "coterie.method",
    "Settings": "coterie.engine.settings",
    "Training": "coterie.methods.fedavg",
    "build_population": "coterie.recipes.population",
    "cnn2": "coterie.models.nets",
    "mlp": "coterie.models.nets",
    "resnet8": "coterie.models.nets",
    "resnet18": "coterie.models.nets",
    "run": "coterie.engine.run",
    "seeded": "coterie.recipes.session",
    "write_report": "coterie.report.page",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
