"""Data sets, partitions, and views on them; knows tensors and random keys only."""

from coterie.data.clients import hold_out, make_population
from coterie.data.examples import ClientParts, Finding, Pixels, Population, View, whole
from coterie.data.inspect import Inspection, inspection
from coterie.data.leaf import write_leaf
from coterie.data.parquet import pack_parquet_as_npz
from coterie.data.partition import Assignment, by_column, dirichlet, iid, keeping_together, pathological
from coterie.data.sources import SOURCES, load
from coterie.data.table import Table

__all__ = [
    "SOURCES",
    "Assignment",
    "ClientParts",
    "Finding",
    "Inspection",
    "Pixels",
    "Population",
    "Table",
    "View",
    "by_column",
    "dirichlet",
    "hold_out",
    "iid",
    "inspection",
    "keeping_together",
    "load",
    "make_population",
    "pack_parquet_as_npz",
    "pathological",
    "whole",
    "write_leaf",
]
