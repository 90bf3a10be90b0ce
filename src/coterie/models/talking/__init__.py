"""A small conditional latent diffusion for talking heads: autoencoder, encoders of sound and face, U-Net, adapters, sampler."""
