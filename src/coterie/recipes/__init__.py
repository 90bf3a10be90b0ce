"""Full runs as plain typed functions; the command line is made from their signatures."""

from coterie.recipes.compare_cifar10 import compare_cifar10
from coterie.recipes.compare_digits import compare_digits
from coterie.recipes.quickstart import quickstart
from coterie.recipes.walk_fable import walk_fable

__all__ = ["compare_cifar10", "compare_digits", "quickstart", "walk_fable"]
