"""What a number means, once: every metric, every summary over clients and every test of a difference."""

from coterie.metrics.classification import BinaryDetection, Classification
from coterie.metrics.clients import OverClients, better, over_clients, summarise
from coterie.metrics.metric import Direction, Metric

__all__ = ["BinaryDetection", "Classification", "Direction", "Metric", "OverClients", "better", "over_clients", "summarise"]
