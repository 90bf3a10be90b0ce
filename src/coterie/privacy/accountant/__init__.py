"""From what rounds let out to epsilon: three views, always together, each with its unit, relation and condition.

`Spending` adds up Releases and tells the three views; `Budget` says how much may be spent; `noise_for` and `rounds_for`
turn a budget into a noise multiplier or a number of rounds.
"""

from coterie.privacy.accountant.budget import Budget
from coterie.privacy.accountant.calibrate import Scheme, noise_for, planned, rounds_for
from coterie.privacy.accountant.sampled import Accountant, available
from coterie.privacy.accountant.spending import Spending
from coterie.privacy.accountant.views import UNIT, View, ViewName

__all__ = [
    "UNIT", "Accountant", "Budget", "Scheme", "Spending", "View", "ViewName", "available", "noise_for", "planned", "rounds_for",
]  # fmt: skip
