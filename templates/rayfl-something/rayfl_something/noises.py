"""A noise that shifts labels by one."""

from __future__ import annotations

import numpy as np

from rayfl.component import Fraction, component
from rayfl.federation.interfaces import Corruption


@component
class MyNoise:
    """A share `rate` of all labels becomes the next class."""

    rate: Fraction
    """The share that is wrong."""

    def corrupt(self, truth, rng):
        """Draw the wrong labels."""
        given = truth.labels.copy()
        wrong = rng.random(len(given)) < self.rate
        given[wrong] = (given[wrong] + 1) % truth.classes
        return Corruption(given, np.full(truth.clients, float(self.rate)))
