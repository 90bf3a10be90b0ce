"""PrivFedTalk in three rooms: what is computed (`losses`), a federated round (`method`), the server's training and the plan (`phases`)."""

from coterie.methods.privfedtalk.losses import AUTOENCODER, BACKBONE
from coterie.methods.privfedtalk.method import PrivFedTalk
from coterie.methods.privfedtalk.phases import PretrainAutoencoder, PretrainBackbone, privfedtalk

__all__ = ["AUTOENCODER", "BACKBONE", "PretrainAutoencoder", "PretrainBackbone", "PrivFedTalk", "privfedtalk"]
