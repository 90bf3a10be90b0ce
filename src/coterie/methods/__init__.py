"""Federated methods: one file per paper. Each name here is a plain function that returns a Plan."""

from coterie.methods.fable import fable
from coterie.methods.fedavg import fedavg
from coterie.methods.local import centralized, local
from coterie.methods.scaffold import scaffold

__all__ = ["centralized", "fable", "fedavg", "local", "scaffold"]
