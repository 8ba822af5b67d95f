"""What a visit selects, batch by batch: the mask that says which samples a client trained on.

A method that chooses within each mini-batch (Co-teaching, SELFIE, Robust FL) leaves it under
`kept`, and the experiment holds it against the truth."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rayfl.arrays import Bools
from rayfl.learn.batches import Batch


class Selection:
    """Which samples were chosen, a row of the mask for each local epoch.

    Parameters
    ----------
    samples
        How many the client has.

    Examples
    --------
    >>> chosen = Selection(len(client))  # doctest: +SKIP
    >>> chosen.note(batch, select_small_losses(losses, 0.8))  # doctest: +SKIP
    >>> return Out(update=trained.weights, state=chosen.state)  # doctest: +SKIP
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._rows: list[Bools] = []

    def note(self, batch: Batch, chosen: Tensor) -> None:
        """Keep what a batch chose.

        Parameters
        ----------
        batch
            Whose samples.
        chosen
            Positions in the batch.
        """
        while len(self._rows) <= batch.epoch:
            self._rows.append(np.zeros(self._samples, dtype=np.bool_))
        self._rows[batch.epoch][batch.index[chosen.cpu().numpy()]] = True

    @property
    def state(self) -> dict[str, Bools]:
        """`Out(state=...)`: the mask under `kept`; nothing where no batch was seen."""
        return {"kept": np.stack(self._rows)} if self._rows else {}
