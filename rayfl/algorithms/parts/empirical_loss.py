"""The mean loss of a model on a client's own samples: what methods judge models, or clients, by."""

from __future__ import annotations

import numpy as np
import torch

from rayfl.learn.judge import judge
from rayfl.learn.losses.base import SampleLoss
from rayfl.protocol import Client, Vector


def measure_loss(client: Client, w: Vector, loss: SampleLoss) -> float:
    """F_k(w), over all samples of the client, in evaluation mode and on images as they are.

    Parameters
    ----------
    client
        Whose samples and labels.
    w
        The model.
    loss
        One value a sample; computed in double precision.
    """
    logits = torch.from_numpy(judge(client, w).logits).double()
    labels = torch.from_numpy(np.array(client.y))
    return float(loss(logits, labels).mean())
