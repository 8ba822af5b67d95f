"""The methods: one file each, found here by name."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.protocol import Algorithm

METHODS: Registry[Algorithm] = Registry(
    "method",
    {
        "fb_nll": "rayfl.algorithms.fb_nll:FbNll",
        "fb_nll_minus": "rayfl.algorithms.fb_nll:FbNllMinus",
        "co_teaching": "rayfl.algorithms.co_teaching:CoTeaching",
        "clean_fedavg": "rayfl.algorithms.oracle:CleanFedAvg",
        "dividemix": "rayfl.algorithms.dividemix:DivideMix",
        "fedavg": "rayfl.algorithms.fedavg:FedAvg",
        "fedcr": "rayfl.algorithms.fedcr:FedCR",
        "fedcr_fedema": "rayfl.algorithms.fedcr_fedema:FedCRFedEma",
        "fedds": "rayfl.algorithms.fedds:FedDS",
        "fedprox": "rayfl.algorithms.fedprox:FedProx",
        "fedrn": "rayfl.algorithms.fedrn:FedRN",
        "joint_optimization": "rayfl.algorithms.joint_optimization:JointOptimization",
        "local_k_similarity": "rayfl.algorithms.local_k_similarity:LocalKSimilarity",
        "moon": "rayfl.algorithms.moon:Moon",
        "oracle": "rayfl.algorithms.oracle:Oracle",
        "robust_fl": "rayfl.algorithms.robust_fl:RobustFL",
        "scaffold": "rayfl.algorithms.scaffold:Scaffold",
        "selfie": "rayfl.algorithms.selfie:Selfie",
        "server_sl": "rayfl.algorithms.server_sl:ServerSL",
        "single_global": "rayfl.algorithms.single_global:SingleGlobal",
    },
)
