"""A small conditional latent diffusion for talking heads: autoencoder, encoders of sound and face, U-Net, adapters, sampler."""

from coterie.models.talking.model import talking_head

__all__ = ["talking_head"]
