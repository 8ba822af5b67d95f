"""Co-teaching in federated averaging: two networks, each of which learns what the other finds easy.

B. Han, Q. Yao, X. Yu, G. Niu, M. Xu, W. Hu, I. Tsang and M. Sugiyama: "Co-teaching: robust training
of deep neural networks with extremely noisy labels", NeurIPS 2018, Algorithm 1, in the federated
form of FedRN's comparison (Kim et al., CIKM 2022). In round t and on every mini-batch of b samples

    R_t    = tau^c min(t / (T_k - 1), 1)                      the share that is left out
    I_a    = the (1 - R_t) b samples of smallest loss under network a;  I_b under b
    loss_a = mean over I_b of CE(a(x), y),   loss_b = mean over I_a of CE(b(x), y)

The server averages the a of all participants, and their b."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, cast

from torch import Tensor, nn

from rayfl.algorithms.fedavg import Global
from rayfl.algorithms.parts.two_networks import TwoGlobals, TwoNetworks
from rayfl.component import Count, Fraction, Positive, component
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting
from rayfl.learn.losses.base import SampleLoss
from rayfl.learn.losses.small_loss import select_small_losses
from rayfl.learn.schedules import forget_rate
from rayfl.learn.selection import Selection
from rayfl.learn.training import Training
from rayfl.protocol import Client, Fleet, Out, Vector

Networks = Mapping[str, nn.Module]


def train_pair(
    client: Client, *, a: Vector, b: Vector, forget: float, method: CoTeaching
) -> Fitting[Out]:
    """Local SGD of both networks on the same batches, each with an optimiser of its own."""
    chosen = Selection(len(client))
    trained = yield Fit({"a": a, "b": b}, loss=exchange_easy(forget, method.loss, chosen))
    return Out(update=trained.weights, state=chosen.state)


def exchange_easy(forget: float, loss: SampleLoss, chosen: Selection) -> BatchLoss:
    """The loss of a batch; what network a finds easy is noted."""

    def exchange(nets: Networks, batch: Batch) -> Tensor:
        answer_a, answer_b = (nets[name](batch.x) for name in ("a", "b"))
        # In the order of the batch: where nothing is left out, the two means are FedAvg's, bit by
        # bit.
        easy_a, easy_b = (
            select_small_losses(loss(answer, batch.y), 1 - forget).sort().values
            for answer in (answer_a, answer_b)
        )
        chosen.note(batch, easy_a)
        loss_a = loss.mean(answer_a[easy_b], batch.y[easy_b])
        loss_b = loss.mean(answer_b[easy_a], batch.y[easy_a])
        return loss_a + loss_b

    return exchange


@component
class CoTeaching(TwoNetworks):
    """Two networks teach each other on samples of small loss; the first one is tested."""

    citation: ClassVar[str] = "Han et al., NeurIPS 2018"
    deviations: ClassVar[tuple[str, ...]] = (
        "R_t follows the round, not the local epoch, as in FedRN's code: a client's epochs are "
        "few, and it is visited seldom.",
        "Losses are means over what is kept; the paper's own code divides by its number once more.",
        "One sample of every batch is kept at least; of equal losses the earlier is the smaller, "
        "and what is not a number is the largest.",
        "Network a is the answer; b is tested as `second` and the mean of both as `both`. FedRN "
        "does not say which of them it prints.",
        "tau is one number for all clients, FedRN's way; the paper takes the noise rate.",
        "R_t grows as t / (T_k - 1) and so is full one round before the paper's T / T_k, as in the "
        "authors' code.",
        "The exponent c is that of tau, as in the authors' code; the paper's is that of T.",
        "The number of samples that are kept is rounded down; the paper keeps at least its share, "
        "which rounds up.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "co_teaching/forget_rate": "R_t, the share of every batch that is left out",
        "labels/precision": "of the samples that network a finds easy, the share labelled right: "
        "the mean over a client's local epochs, and over clients",
        "labels/recall": "of the samples that are labelled right, the share that a finds easy",
    }

    tau: Fraction = 0.2
    """The share that is left out in the end. Paper: the noise rate; FedRN's code: 0.2; the mean
    rates of FedRN's settings: 0.2 (0.0-0.4) and 0.4 (0.0-0.8). Neutral: 0, two FedAvgs apart."""
    warmup: Count = 100
    """T_k, rounds until that share is reached. Paper: 10 epochs; FedRN: 100 rounds of 500."""
    exponent: Positive = 1.0
    """c, the power of tau. Paper and FedRN: 1."""

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        reached = forget_rate(training.rounds - 1, self.tau, self.warmup, self.exponent)
        whole = forget_rate(self.warmup, self.tau, self.warmup, self.exponent)
        if reached < whole:
            yield (
                f"method.warmup is {self.warmup} and the run has {training.rounds} rounds: at most "
                f"{reached:.3g} of a batch is ever left out, not {whole:.3g}. "
                "Raise training.rounds or lower method.warmup."
            )

    def round(self, state: Global, fleet: Fleet, t: int) -> TwoGlobals:
        forget = forget_rate(t, self.tau, self.warmup, self.exponent)
        fleet.log(**{"co_teaching/forget_rate": forget})
        second = cast(TwoGlobals, state).second
        cohort = fleet.sample(t)
        got = fleet.map(train_pair, cohort, a=state.model, b=second, forget=forget, method=self)
        return self.aggregate_both(got, fleet)
