"""Full runs as plain typed functions; the command line is made from their signatures."""

from coterie.recipes.quickstart import quickstart

__all__ = ["quickstart"]
