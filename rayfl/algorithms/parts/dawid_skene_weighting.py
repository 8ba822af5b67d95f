"""Clients count by how reliable their models look on public images that nobody labelled.

J. Dong, R. Zhu, X. Shang and J.-H. Xue: "Dawid-Skene-model-based label-noise mitigation for
federated learning", Information Sciences 745, 2026. The server asks every returned model for the
class of every public image; the Dawid-Skene model explains these votes by one confusion matrix M_j
a client, without any label (eq. 9-11); the mean of its diagonal is the client's reliability r_j
(eq. 7), and the weights are w_j = r_j / sum r (eq. 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import ClassVar, Literal

import numpy as np

from rayfl.algorithms.parts.weighting import Weighting
from rayfl.component import Natural, NonNegative, component
from rayfl.errors import ConfigError, broken
from rayfl.estimate.dawid_skene import DawidSkene, weigh_by_reliability
from rayfl.learn.fit import compute_outputs
from rayfl.protocol import Client, ClientId, Fleet, Out, Replies, Shard, Vector


def vote(client: Client, *, w: Vector, public: Shard, **others: Vector) -> Out:
    """The class that a returned model gives each public image, and how many classes it knows. What
    else the host's clients leave (a control variate) has no vote."""
    logits = compute_outputs(client.learner, w, public.x)
    # Finite weights can still overflow on an image: such a model has no opinion of it, and class 0
    # stands for none.
    votes = np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), 0)
    classes = logits.shape[1]
    return Out({"votes": votes.astype(np.min_scalar_type(classes)), "classes": classes})


@component
class DawidSkeneWeighting(Weighting):
    """Clients count by their Dawid-Skene reliability on the public images; how many samples they
    hold does not count.

    Needs `split.public`; labels of these images are never read.
    """

    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"public": "images"}
    metrics: ClassVar[Mapping[str, str]] = {
        "reliability/mean": "mean of r_j over the round's clients",
        "reliability/min": "the least of them",
        "reliability/max": "the largest of them",
        "reliability/dominant_share": "share of clients whose estimated confusion has its largest "
        "entries on the diagonal",
        "reliability/misaligned": "1 where another naming of the latent classes would raise the "
        "sum of the confusions' traces",
        "reliability/em_iterations": "EM iterations of this round",
        "reliability/unusable": "1 where the reliabilities sum to nothing usable, and clients "
        "weigh equally",
    }

    iterations: Natural = 500
    """Most EM iterations. Paper: 500, the best of 50, 100, 500 and 1000; a comparison of counts
    needs `tol: 0`."""
    tol: NonNegative = 1e-5
    """EM stops when no posterior moves by this much; 0 takes every iteration. Released code:
    1e-5."""
    init: Literal["soft", "hard"] = "soft"
    """Posteriors before the first M-step: shares of the votes, or the majority."""
    use_prior: bool = True
    """The class prior in the E-step, as in the paper's eq. 9; its released code leaves the prior
    out."""
    smooth: NonNegative = 0.0
    """Added to every count of a confusion matrix; 0 in the paper."""

    def check(self, fleet: Fleet) -> None:
        try:
            fleet.data("public")
        except ConfigError:
            rule = "the weighting 'dawid_skene' needs the set 'public'"
            remedy = "Set split.public, for example 0.1."
            raise ConfigError(broken(rule, "a split without it", remedy)) from None

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        ballots = got.examine(vote, public=fleet.data("public"))
        votes = np.stack([ballots[client]["votes"] for client in got], axis=1).astype(np.int64)
        classes = ballots[next(iter(got))]["classes"]
        found = DawidSkene(**asdict(self), classes=classes).fit(votes)
        fleet.answered("public", dict(zip(got, votes.T, strict=True)))
        fleet.estimate("reliability", dict(zip(got, found.reliability_.tolist(), strict=True)))
        fleet.log(**describe_fit(found))
        return dict(zip(got, weigh_by_reliability(found.reliability_).tolist(), strict=True))


def describe_fit(found: DawidSkene) -> dict[str, float]:
    """What a fit says about itself: spread of the reliabilities, and whether the latent classes are
    the real ones."""
    r = found.reliability_
    return {
        "reliability/mean": float(r.mean()),
        "reliability/min": float(r.min()),
        "reliability/max": float(r.max()),
        "reliability/dominant_share": found.dominant_share_,
        "reliability/misaligned": float(found.misaligned_),
        "reliability/em_iterations": float(found.n_iter_),
        "reliability/unusable": float(not (np.isfinite(r.sum()) and r.sum() > 0)),
    }
