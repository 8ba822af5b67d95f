"""Two networks as one: what methods train whose networks teach each other.

One flat vector holds both, so it travels, is averaged and is optimised like any network's: SGD and
Adam change every number by its own gradient alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Answer = Literal["first", "mean"]


class Pair(nn.Module):
    """Two networks that answer the same question.

    Parameters
    ----------
    a, b
        The networks; give them first weights that differ (`blueprint(0)`, `blueprint(1)`).
    answer
        What the pair answers where it is tested: the `first` one's logits, or the logarithm of the
        `mean` of both networks' probabilities.
    """

    def __init__(self, a: nn.Module, b: nn.Module, answer: Answer = "first") -> None:
        super().__init__()
        self.a = a
        self.b = b
        self.answer = answer

    @property
    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Both, for whoever counts what passes through them."""
        return self.a, self.b

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.a(x)
        if self.answer == "first":
            return logits
        # In logarithms, where small probabilities do not vanish.
        both = torch.stack([logits.log_softmax(1), self.b(x).log_softmax(1)])
        return both.logsumexp(0) - torch.log(torch.tensor(2.0))
