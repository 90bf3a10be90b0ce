"""Secure aggregation: a server that learns the sum of its clients' vectors, and nothing of any one of them.

`SecureSum` says what is asked for. `Client` and `Server` are the two sides, which exchange bytes only; `InProcess` drives all of
them in one process. `FixedPoint` turns real numbers into whole ones that can be masked. Needs `coterie[privacy]`.
"""

from coterie.privacy.secure_sum.client import Client
from coterie.privacy.secure_sum.fixed_point import FixedPoint
from coterie.privacy.secure_sum.in_process import InProcess
from coterie.privacy.secure_sum.messages import Refused
from coterie.privacy.secure_sum.server import Server
from coterie.privacy.secure_sum.settings import Aborted, SecureSum

__all__ = ["Aborted", "Client", "FixedPoint", "InProcess", "Refused", "SecureSum", "Server"]
