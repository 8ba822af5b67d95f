"""The methods: one file each, found here by name."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.protocol import Algorithm

METHODS: Registry[Algorithm] = Registry(
    "method",
    {
        "clean_fedavg": "rayfl.algorithms.oracle:CleanFedAvg",
        "client_selection": "rayfl.algorithms.client_selection:ClientSelection",
        "clipfl": "rayfl.algorithms.clipfl:ClipFL",
        "clipfl_personal": "rayfl.algorithms.clipfl:ClipFLPersonal",
        "co_teaching": "rayfl.algorithms.co_teaching:CoTeaching",
        "dividemix": "rayfl.algorithms.dividemix:DivideMix",
        "fb_nll": "rayfl.algorithms.fb_nll:FbNll",
        "fb_nll_minus": "rayfl.algorithms.fb_nll:FbNllMinus",
        "fedanchor": "rayfl.algorithms.fedanchor:FedAnchor",
        "fedavg": "rayfl.algorithms.fedavg:FedAvg",
        "fedcon": "rayfl.algorithms.fedcon:FedCon",
        "fedcorr": "rayfl.algorithms.fedcorr:FedCorr",
        "fedcr": "rayfl.algorithms.fedcr:FedCR",
        "fedcr_fedema": "rayfl.algorithms.fedcr_fedema:FedCRFedEma",
        "fedds": "rayfl.algorithms.fedds:FedDS",
        "fedln_akd": "rayfl.algorithms.fedln_akd:FedLNAKD",
        "fedmatch": "rayfl.algorithms.fedmatch:FedMatch",
        "fednoro": "rayfl.algorithms.fednoro:FedNoRo",
        "fedprox": "rayfl.algorithms.fedprox:FedProx",
        "fedrn": "rayfl.algorithms.fedrn:FedRN",
        "fl2": "rayfl.algorithms.fl2:FL2",
        "focus": "rayfl.algorithms.focus:Focus",
        "ifca_pfl": "rayfl.algorithms.ifca_pfl:IfcaPfl",
        "joint_optimization": "rayfl.algorithms.joint_optimization:JointOptimization",
        "local_k_similarity": "rayfl.algorithms.local_k_similarity:LocalKSimilarity",
        "moon": "rayfl.algorithms.moon:Moon",
        "oracle": "rayfl.algorithms.oracle:Oracle",
        "rhfl": "rayfl.algorithms.rhfl:RHFL",
        "robust_fl": "rayfl.algorithms.robust_fl:RobustFL",
        "rscfed": "rayfl.algorithms.rscfed:RSCFed",
        "scaffold": "rayfl.algorithms.scaffold:Scaffold",
        "selfie": "rayfl.algorithms.selfie:Selfie",
        "semi_supervised": "rayfl.algorithms.semi_supervised:SemiSupervised",
        "semifl": "rayfl.algorithms.semifl:SemiFL",
        "server_sl": "rayfl.algorithms.server_sl:ServerSL",
        "single_global": "rayfl.algorithms.single_global:SingleGlobal",
        "ssfl": "rayfl.algorithms.ssfl:SSFL",
    },
    plugins="rayfl.methods",
)
