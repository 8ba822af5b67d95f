"""Learning from another network's answers (Hinton, Vinyals and Dean, 2015).

    KL(q || p) = sum_c q_c (log q_c - log p_c),   q = softmax(z' / T_t),   p = softmax(z / T_s)

z' are the teacher's logits, z the student's, which alone get a gradient. A q_c of 0 adds nothing,
as its limit says."""

from __future__ import annotations

import torch
from torch import Tensor

from rayfl.errors import ConfigError, broken


def soften(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """softmax(z / T), as a target: no gradient goes back through it.

    Parameters
    ----------
    logits
        What the teacher answers, (N, C).
    temperature
        T; below 1 the rows are sharper than the teacher's, above 1 flatter.
    """
    if not temperature > 0:
        raise ConfigError(broken("the temperature of a distillation must be positive", temperature))
    return (logits.detach() / temperature).softmax(-1)


def kl_divergence(rows: Tensor, logits: Tensor) -> Tensor:
    """KL(q || softmax(z)), one value a sample.

    A class that the student cannot answer (a logit of minus infinity, where logits are adjusted by
    a prior of 0) adds the constant q log q, as FedNoRo's code has it, instead of infinity.

    Parameters
    ----------
    rows
        q, the distributions that the student is to meet, (N, C); no gradient reaches them.
    logits
        z, the student's, (N, C).
    """
    targets = rows.detach()
    log_p = logits.log_softmax(-1)
    # 0 in the place of minus infinity: 0 * inf has no gradient that one could use.
    known = log_p.masked_fill(log_p.isneginf(), 0.0)
    return (torch.xlogy(targets, targets) - targets * known).sum(-1)


def distillation(
    logits: Tensor,
    teacher: Tensor,
    temperature: float = 1.0,
    teacher_temperature: float | None = None,
    scaled: bool = False,
) -> Tensor:
    """KL of the softened teacher from the softened student, one value a sample.

    Parameters
    ----------
    logits
        The student's, (N, C).
    teacher
        The teacher's logits, (N, C); no gradient reaches them.
    temperature
        T_s of the student. FedNoRo: 1.
    teacher_temperature
        T_t of the teacher, by default the student's. FedNoRo: 0.8.
    scaled
        Multiply by T_s squared, which keeps the gradient's size (Hinton et al., section 2.1).
    """
    own = temperature if teacher_temperature is None else teacher_temperature
    targets = soften(teacher, own)
    if not temperature > 0:
        raise ConfigError(broken("the temperature of a distillation must be positive", temperature))
    losses = kl_divergence(targets, logits / temperature)
    return losses * temperature**2 if scaled else losses
