"""SemiFL's loss of images and their guessed labels, which FedAnchor shares.

    D_fix: the images that are sure;  D_mix: as many draws with replacement
    L = CE(y_fix, f(strong(x_fix))) + lam CE(y_fix, f(x_mix)) + (1 - lam) CE(y_mix, f(x_mix))
    x_mix = lam weak(x_fix) + (1 - lam) weak(x_mix),  lam ~ Beta(a, a), one a batch

E. Diao, J. Ding and V. Tarokh: "SemiFL: semi-supervised federated learning for unlabeled clients
with alternate training", NeurIPS 2022."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from rayfl.arrays import Bools
from rayfl.learn.augment import Augmentation
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import BatchLoss
from rayfl.learn.mixing import blend_losses, draw_share, mix_inputs
from rayfl.learn.sample_stream import SampleStream
from rayfl.protocol import Client


def fix_and_mix(
    guessed: Client, sure: Bools, mixed: Bools, beta: float, strong: Augmentation
) -> BatchLoss:
    """The loss of a batch of D_fix, beside an equally long one of D_mix.

    Parameters
    ----------
    guessed
        The client, with its guesses for labels.
    sure
        Which images are D_fix; the batches are to be of these.
    mixed
        Which images D_mix is drawn from.
    beta
        a, of the distribution of shares.
    strong
        The strong view; the weak ones are `training.augment`'s.
    """
    drawn = guessed.rng.choice(np.flatnonzero(mixed), int(sure.sum()))
    others = SampleStream(guessed.on(guessed.x[drawn], guessed.y[drawn]))

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        other = others.draw(len(batch))
        assert other is not None
        share = draw_share(beta, batch.generator)
        fixed = functional.cross_entropy(net(batch.view(strong)), batch.y)
        logits = net(mix_inputs(batch.x, other.x, share))
        return fixed + blend_losses(functional.cross_entropy, logits, batch.y, other.y, share)

    return loss
