"""Full runs as plain typed functions; the command line is made from their signatures."""

from types import FunctionType

from coterie.recipes.compare_cifar10 import compare_cifar10 as compare_cifar10
from coterie.recipes.compare_digits import compare_digits as compare_digits
from coterie.recipes.compare_text import compare_text as compare_text
from coterie.recipes.dp_cifar10 import dp_cifar10 as dp_cifar10
from coterie.recipes.dp_digits import dp_digits as dp_digits
from coterie.recipes.fable_inversion import fable_inversion as fable_inversion
from coterie.recipes.quickstart import quickstart as quickstart
from coterie.recipes.robustness import robustness as robustness
from coterie.recipes.walk_fable import walk_fable as walk_fable
from coterie.recipes.walk_fedxds import walk_fedxds as walk_fedxds
from coterie.recipes.walk_fl_gap import walk_fl_gap as walk_fl_gap
from coterie.recipes.walk_privfedtalk import walk_privfedtalk as walk_privfedtalk

__all__ = sorted(name for name, value in globals().items() if isinstance(value, FunctionType))
