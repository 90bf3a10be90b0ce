"""What a method is, and what it may ask for.

A method is written the way its paper prints it. Wherever the paper says "train" the client run asks the
engine (`got = yield from Train(...)`), where it passes over data without training it asks `Sweep`, and where
it talks to the server in mid-round it asks `Exchange`. The engine owns the only training loop.
"""

from __future__ import annotations

from coterie.method.asks import (
    Adjust,
    Ask,
    Exchange,
    GradientFn,
    Loss,
    LossFn,
    Predictor,
    Sweep,
    SweepFn,
    Term,
    Train,
    Trained,
    Turn,
    check_function,
)
from coterie.method.contracts import Batch, Examples, Net, Parts
from coterie.method.editing import as_run, editing, peek
from coterie.method.hooks import ClientRun, Hub, Method, PersonalRun, Round, ServerRun, Site, Wrapper
from coterie.method.optimizers import SGD, Adam, Optimizer, Schedule
from coterie.method.plan import AllBut, Cohort, Everyone, Fixed, Named, Nobody, Phase, Plan, Poisson

__all__ = [
    "Adam",
    "Adjust",
    "AllBut",
    "Ask",
    "Batch",
    "ClientRun",
    "Cohort",
    "Everyone",
    "Examples",
    "Exchange",
    "Fixed",
    "GradientFn",
    "Hub",
    "Loss",
    "LossFn",
    "Method",
    "Named",
    "Net",
    "Nobody",
    "Optimizer",
    "Parts",
    "PersonalRun",
    "Phase",
    "Plan",
    "Poisson",
    "Predictor",
    "Round",
    "SGD",
    "Schedule",
    "ServerRun",
    "Site",
    "Sweep",
    "SweepFn",
    "Term",
    "Train",
    "Trained",
    "Turn",
    "Wrapper",
    "as_run",
    "check_function",
    "editing",
    "peek",
]
