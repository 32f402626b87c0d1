"""Our own decoder and the LightningModule that trains it."""

from dynamics.model.module import SequenceModule
from dynamics.model.transformer import Positions, Transformer

__all__ = ["Positions", "SequenceModule", "Transformer"]
