"""Federated methods: one file per paper. Each name here is a plain function that returns a Plan."""

from types import FunctionType

from coterie.methods.ditto import ditto as ditto
from coterie.methods.fable import fable as fable
from coterie.methods.fedala import fedala as fedala
from coterie.methods.fedas import fedas as fedas
from coterie.methods.fedavg import fedavg as fedavg
from coterie.methods.fedbn import fedbn as fedbn
from coterie.methods.feddbe import feddbe as feddbe
from coterie.methods.fedper import fedper as fedper
from coterie.methods.fedprox import fedprox as fedprox
from coterie.methods.fedrep import fedrep as fedrep
from coterie.methods.fedxds import fedxds as fedxds
from coterie.methods.fl_gap import fl_gap as fl_gap
from coterie.methods.gpfl import gpfl as gpfl
from coterie.methods.linear import fedavg_linear as fedavg_linear
from coterie.methods.linear import fedper_linear as fedper_linear
from coterie.methods.local import centralized as centralized
from coterie.methods.local import local as local
from coterie.methods.moon import moon as moon
from coterie.methods.privfedtalk import privfedtalk as privfedtalk
from coterie.methods.scaffold import scaffold as scaffold

__all__ = sorted(name for name, value in globals().items() if isinstance(value, FunctionType))
