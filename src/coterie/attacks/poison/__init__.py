"""Clients that poison a run: what they train on, and what they send."""

from coterie.attacks.poison.attack import Attack as Attack
from coterie.attacks.poison.backdoor import Backdoor as Backdoor
from coterie.attacks.poison.labels import LabelFlip as LabelFlip
from coterie.attacks.poison.score import LyingScore as LyingScore
from coterie.attacks.poison.updates import InnerProduct as InnerProduct
from coterie.attacks.poison.updates import RandomUpdate as RandomUpdate
from coterie.attacks.poison.updates import ScaledUpdate as ScaledUpdate
from coterie.attacks.poison.updates import SignFlip as SignFlip
