"""Federated methods: one file per paper. Each name here is a plain function that returns a Plan."""

from coterie.methods.ditto import ditto
from coterie.methods.fable import fable
from coterie.methods.fedavg import fedavg
from coterie.methods.fedbn import fedbn
from coterie.methods.fedper import fedper
from coterie.methods.fedprox import fedprox
from coterie.methods.fedrep import fedrep
from coterie.methods.local import centralized, local
from coterie.methods.scaffold import scaffold

__all__ = ["centralized", "ditto", "fable", "fedavg", "fedbn", "fedper", "fedprox", "fedrep", "local", "scaffold"]
