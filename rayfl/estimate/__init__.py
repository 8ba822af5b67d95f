"""Estimators of label noise and of similarity, usable without any federated learning: numpy in,
numpy out."""

from rayfl.estimate.clustering import (
    adjusted_rand_index,
    agglomerate,
    cluster_by_linkage,
    cut,
    k_means,
    spectral,
)
from rayfl.estimate.dawid_skene import DawidSkene, measure_reliability, reliability_weights
from rayfl.estimate.gaussian_mixture import GaussianMixture, MixtureFit
from rayfl.estimate.label_quality import (
    label_precision,
    label_recall,
    mean_of_known,
    pearson,
    repair_quality,
)
from rayfl.estimate.lid import (
    client_lids,
    lid_of_distances,
    local_intrinsic_dimensionality,
    mean_lid,
)
from rayfl.estimate.mixture import LossMixture, LossSplit
from rayfl.estimate.neighbour_votes import measure_disagreement, vote_labels
from rayfl.estimate.neighbours import (
    cosine_similarity,
    ensemble_posterior,
    expertise,
    random_neighbours,
    reliability_scores,
    reliable_neighbours,
    similarity,
)
from rayfl.estimate.probabilities import measure_confidence, measure_entropy, softmax
from rayfl.estimate.scaling import average_by_class, fill_and_scale
from rayfl.estimate.subspace import (
    Calibration,
    Correction,
    Spectra,
    calibrate,
    correct_labels,
    nearest_class,
    pairwise_relevance,
    similarity_matrix,
    spectra,
)

__all__ = [
    "Calibration",
    "Correction",
    "DawidSkene",
    "GaussianMixture",
    "LossMixture",
    "LossSplit",
    "MixtureFit",
    "Spectra",
    "adjusted_rand_index",
    "agglomerate",
    "average_by_class",
    "calibrate",
    "client_lids",
    "cluster_by_linkage",
    "correct_labels",
    "cosine_similarity",
    "cut",
    "ensemble_posterior",
    "expertise",
    "fill_and_scale",
    "k_means",
    "label_precision",
    "label_recall",
    "lid_of_distances",
    "local_intrinsic_dimensionality",
    "mean_lid",
    "mean_of_known",
    "measure_confidence",
    "measure_disagreement",
    "measure_entropy",
    "measure_reliability",
    "nearest_class",
    "pairwise_relevance",
    "pearson",
    "random_neighbours",
    "reliability_scores",
    "reliability_weights",
    "reliable_neighbours",
    "repair_quality",
    "similarity",
    "similarity_matrix",
    "softmax",
    "spectra",
    "spectral",
    "vote_labels",
]
