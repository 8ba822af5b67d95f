"""Estimators of label noise and of similarity, usable without any federated learning: numpy in,
numpy out."""

from rayfl.estimate.clustering import (
    adjusted_rand_index,
    agglomerate,
    cluster_by_linkage,
    cluster_spectrally,
    cut_hierarchy,
    k_means,
)
from rayfl.estimate.dawid_skene import DawidSkene, measure_reliability, weigh_by_reliability
from rayfl.estimate.gaussian_mixture import GaussianMixture, MixtureFit
from rayfl.estimate.label_correction import (
    Calibration,
    Correction,
    calibrate_correction,
    correct_labels,
    find_nearest_class,
)
from rayfl.estimate.label_quality import (
    SelectionQuality,
    average_known,
    measure_correlation,
    measure_repair,
    measure_selection,
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
    average_posteriors,
    choose_neighbours,
    compare_by_cosine,
    draw_neighbours,
    scale_expertise,
    scale_similarity,
    score_reliability,
)
from rayfl.estimate.probabilities import measure_confidence, measure_entropy, softmax
from rayfl.estimate.scaling import average_by_class, fill_and_scale
from rayfl.estimate.subspace import (
    Criterion,
    Spectra,
    decompose_features,
    pairwise_relevance,
    similarity_matrix,
)

__all__ = [
    "Calibration",
    "Correction",
    "Criterion",
    "DawidSkene",
    "GaussianMixture",
    "LossMixture",
    "LossSplit",
    "MixtureFit",
    "SelectionQuality",
    "Spectra",
    "adjusted_rand_index",
    "agglomerate",
    "average_by_class",
    "average_known",
    "average_posteriors",
    "calibrate_correction",
    "choose_neighbours",
    "client_lids",
    "cluster_by_linkage",
    "cluster_spectrally",
    "compare_by_cosine",
    "correct_labels",
    "cut_hierarchy",
    "decompose_features",
    "draw_neighbours",
    "fill_and_scale",
    "find_nearest_class",
    "k_means",
    "lid_of_distances",
    "local_intrinsic_dimensionality",
    "mean_lid",
    "measure_confidence",
    "measure_correlation",
    "measure_disagreement",
    "measure_entropy",
    "measure_reliability",
    "measure_repair",
    "measure_selection",
    "pairwise_relevance",
    "scale_expertise",
    "scale_similarity",
    "score_reliability",
    "similarity_matrix",
    "softmax",
    "vote_labels",
    "weigh_by_reliability",
]
