"""The methods: one file each, found here by name."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.protocol import Algorithm

METHODS: Registry[Algorithm] = Registry(
    "method",
    {
        "fb_nll": "rayfl.algorithms.fb_nll:FbNll",
        "fb_nll_minus": "rayfl.algorithms.fb_nll:FbNllMinus",
        "clean_fedavg": "rayfl.algorithms.oracle:CleanFedAvg",
        "fedanchor": "rayfl.algorithms.fedanchor:FedAnchor",
        "fedavg": "rayfl.algorithms.fedavg:FedAvg",
        "fedcon": "rayfl.algorithms.fedcon:FedCon",
        "fedcr": "rayfl.algorithms.fedcr:FedCR",
        "fedcr_fedema": "rayfl.algorithms.fedcr_fedema:FedCRFedEma",
        "fedds": "rayfl.algorithms.fedds:FedDS",
        "fedmatch": "rayfl.algorithms.fedmatch:FedMatch",
        "fedprox": "rayfl.algorithms.fedprox:FedProx",
        "fedrn": "rayfl.algorithms.fedrn:FedRN",
        "fl2": "rayfl.algorithms.fl2:FL2",
        "local_k_similarity": "rayfl.algorithms.local_k_similarity:LocalKSimilarity",
        "moon": "rayfl.algorithms.moon:Moon",
        "oracle": "rayfl.algorithms.oracle:Oracle",
        "rscfed": "rayfl.algorithms.rscfed:RSCFed",
        "scaffold": "rayfl.algorithms.scaffold:Scaffold",
        "semifl": "rayfl.algorithms.semifl:SemiFL",
        "semi_supervised": "rayfl.algorithms.semi_supervised:SemiSupervised",
        "server_sl": "rayfl.algorithms.server_sl:ServerSL",
        "single_global": "rayfl.algorithms.single_global:SingleGlobal",
        "ssfl": "rayfl.algorithms.ssfl:SSFL",
    },
)
