"""Losses of the methods, one a file: pure functions of tensors.

Unless the loss is a property of the whole batch they return one value an image; the caller
averages."""

from __future__ import annotations

from rayfl.learn.losses.byol import byol, byol_symmetric
from rayfl.learn.losses.contrastive_pairs import contrastive_pairs, ctrr_pairs
from rayfl.learn.losses.cosine import cosines, unit
from rayfl.learn.losses.gce import gce
from rayfl.learn.losses.k_similarity import k_similarity, nearest_in_batch
from rayfl.learn.losses.logit_clip import logit_clip
from rayfl.learn.losses.model_contrastive import model_contrastive
from rayfl.learn.losses.symmetric_ce import symmetric_ce

__all__ = [
    "byol",
    "byol_symmetric",
    "contrastive_pairs",
    "cosines",
    "ctrr_pairs",
    "gce",
    "k_similarity",
    "logit_clip",
    "model_contrastive",
    "nearest_in_batch",
    "symmetric_ce",
    "unit",
]
