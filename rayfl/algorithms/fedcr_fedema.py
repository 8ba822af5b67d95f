"""FedCR with the model update of FedEMA: a returning client keeps part of its own online network.

W. Zhuang, Y. Wen and S. Zhang: "Divergence-aware federated self-supervised learning", ICLR 2022,
inside FedCR (W. Mao et al., Applied Soft Computing, section 4.5.4).

    theta_k <- mu theta_k + (1 - mu) theta,  mu = min(1, lambda_k d_k),  lambda_k = target / (d_k at
    the first return)

d_k is how far the global network has moved from the client's own: the further, the more of its own
a client keeps. The target network stays at the client between its visits. A client therefore
remembers two networks: on paper-sized runs give the checkpoints room for all clients seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import nn

from rayfl.algorithms.fedcr import FedCR, Networks, contrast_locally, gate, report_of
from rayfl.algorithms.parts.online_target import resident_pair
from rayfl.component import Fraction, NonNegative, component
from rayfl.errors import broken
from rayfl.learn.local_fit import Fitting
from rayfl.protocol import Client, Fleet, Out, Replies, Vector


@dataclass(frozen=True)
class Start:
    """Where a visit begins: mu, what mu came from, and the networks."""

    theta: Vector
    xi: Vector | None = None
    mu: float = 0.0
    scaler: float | None = None


def kernel_spans(encoder: nn.Module) -> list[slice]:
    """Where the kernels that measure divergence lie: convolutions off the shortcuts; without any,
    weight matrices."""
    spans: dict[str, tuple[int, slice]] = {}
    start = 0
    for name, parameter in encoder.named_parameters():
        spans[name] = (parameter.dim(), slice(start, start + parameter.numel()))
        start += parameter.numel()
    kernels = [span for name, (dim, span) in spans.items() if dim == 4 and "shortcut" not in name]
    return kernels or [span for dim, span in spans.values() if dim >= 2]


def measure_divergence(one: Vector, other: Vector, spans: Sequence[slice]) -> float:
    """The mean over kernels of the Euclidean distance."""
    distances = [np.linalg.norm(one[span].astype(np.float64) - other[span]) for span in spans]
    return float(np.mean(distances))


def first_scaler(target: float, distance: float) -> float | None:
    """The lambda_k that gives mu = target at this distance; none yet where nothing has moved."""
    return target / distance if distance > 0 else None


def own_share(scaler: float | None, distance: float) -> float:
    """mu: how much of its own network a client keeps."""
    return 0.0 if scaler is None else min(1.0, scaler * distance)


def mix_networks(mu: float, own: Vector, theta: Vector, parameters: int) -> Vector:
    """The convex combination of the parameters; BatchNorm statistics are the global ones."""
    start: Vector = theta.copy()
    start[:parameters] = mu * own[:parameters] + (1 - mu) * theta[:parameters]
    return start


def start_visit(client: Client, method: FedCRFedEma, theta: Vector, t: int) -> Start:
    """What a client starts from in round t."""
    state = client.state
    scaler: float | None = state.get("scaler")
    if "theta" not in state or (method.selective and state["round"] != t - 1):
        return Start(theta, scaler=scaler)
    _, target, layout = resident_pair(client.learner)
    own = state["theta"]
    if method.divergence == "local_drift":
        distance = state["drift"]
    else:
        distance = measure_divergence(theta, own, kernel_spans(target.net))
    if method.scaler is not None:
        scaler = method.scaler
    elif not scaler:
        scaler = first_scaler(method.target, distance)
    mu = own_share(scaler, distance)
    mixed = mix_networks(mu, own, theta, layout.classifier)
    return Start(mixed, state["xi"], mu, scaler)


def train_returning(
    client: Client, *, theta: Vector, method: FedCRFedEma, t: int, sigma: Vector | None = None
) -> Fitting[Out]:
    """LocalUpdate from a mixture of the global and the client's own network, both of which it
    keeps."""
    sigma, state = gate(client, method, sigma)
    start = start_visit(client, method, theta, t)
    visit = contrast_locally(client, method, start.theta, sigma, start.xi)
    pair, trained, end = yield from visit
    if not trained.steps:
        return Out(report_of(trained), state=state)
    state |= {"theta": end, "xi": pair.target.dump(), "round": t}
    state["drift"] = measure_divergence(start.theta, end, kernel_spans(pair.target.net))
    state |= {} if start.scaler is None else {"scaler": start.scaler}
    returning = {"_mu": start.mu} if start.xi is not None else {}
    return Out({**report_of(trained), **returning}, {"theta": end}, state)


@component
class FedCRFedEma(FedCR):
    """FedCR whose returning clients mix the global online network with their own, the more the
    further it moved."""

    citation: ClassVar[str] = "Mao et al., Applied Soft Computing; Zhuang et al., ICLR 2022"
    metrics: ClassVar[Mapping[str, str]] = {
        **FedCR.metrics,
        "mixing/own_share": "mean of mu, the share that a returning client keeps of its own "
        "network",
        "mixing/deaf_to_server": "share of the returning clients whose mu is 1: they take nothing "
        "of the global network",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        *FedCR.deviations,
        "Divergence is that of the new global from the last local network; FedEMA's code takes "
        "how far the client itself went at its last visit (divergence: local_drift).",
        "Divergence is the mean over the encoder's convolution kernels off the shortcuts, or over "
        "its weight matrices where it has no convolution; FedEMA's code picks tensors by name.",
        "Every returning client mixes; FedEMA's code for sampled clients does so only after two "
        "visits in a row (selective: true).",
        "Parameters alone are mixed: a returning client begins with the global network's BatchNorm "
        "statistics.",
        "A client that took no step before its return starts from the global network, and sets "
        "its scaler later.",
    )
    target: Fraction = 0.7
    """mu at a client's first return (FedEMA: 0.7; neutral: 0, apart from the local target
    network)."""
    scaler: NonNegative | None = None
    """A constant lambda_k in place of one from each client's first return."""
    divergence: Literal["global_vs_local", "local_drift"] = "global_vs_local"
    selective: bool = False
    """Mix only after a visit in the round before; otherwise both networks are overwritten, as in
    FedCR."""

    def __post_init__(self) -> None:
        if self.whole_model:
            rule = (
                "clients of fedcr_fedema keep their own target network: whole_model must be false"
            )
            raise ValueError(broken(rule, "true", "Use fedcr to let the whole model travel."))

    def train_clients(self, state: Networks, fleet: Fleet, t: int) -> Replies:
        cohort = fleet.sample(t)
        each: Mapping[int, Mapping[str, Any]] = self.classifiers(state, fleet, cohort)
        got = fleet.map(train_returning, cohort, each=each, theta=state.theta, method=self, t=t)
        shares = [report["_mu"] for report in got.values() if "_mu" in report]
        if shares:
            deaf = float(np.mean([mu == 1 for mu in shares]))
            fleet.log(**{"mixing/own_share": float(np.mean(shares)), "mixing/deaf_to_server": deaf})
        return got
