"""Data sets, partitions, and views on them; knows tensors and random keys only."""

from coterie.data.clients import make_population
from coterie.data.examples import ClientParts, Finding, Pixels, Population, View, whole
from coterie.data.partition import Assignment, by_column, dirichlet, iid, keeping_together, pathological
from coterie.data.sources import SOURCES, load
from coterie.data.table import Table

__all__ = [
    "SOURCES",
    "Assignment",
    "ClientParts",
    "Finding",
    "Pixels",
    "Population",
    "Table",
    "View",
    "by_column",
    "dirichlet",
    "iid",
    "keeping_together",
    "load",
    "make_population",
    "pathological",
    "whole",
]
