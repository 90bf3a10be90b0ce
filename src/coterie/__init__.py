"""Coterie: personalised and private federated learning, from paper to deployment."""

__version__ = "0.1.0"
