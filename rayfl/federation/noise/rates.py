"""How noisy each client is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.random import Generator
from pydantic import BeforeValidator, Field, model_validator

from rayfl.component import Fraction, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Floats
from rayfl.federation.noise import RATES, Rates


def _expand_rate(spec: Any) -> Any:
    """The mapping that a plain number (constant) or list (explicit) is short for."""
    # True is an int in Python, but no rate.
    if isinstance(spec, bool):
        return spec
    if isinstance(spec, int | float):
        return {"name": "constant", "value": spec}
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return {"name": "explicit", "values": spec}
    return spec


Rate = Annotated[Rates, slot(RATES), BeforeValidator(_expand_rate)]
"""A field that takes a number, a list with one number a client, or a component of RATES."""


class _Interval:
    """The rule that the settings `min` and `max` share."""

    min: float
    max: float

    @model_validator(mode="after")
    def _ordered(self) -> _Interval:
        if self.min > self.max:
            raise ValueError(broken("min is at most max", f"min {self.min}, max {self.max}"))
        return self


@component
class Constant:
    """The same rate for every client."""

    value: Fraction

    def per_client(self, clients: int, rng: Generator) -> Floats:
        return np.full(clients, self.value)


@component
class Ramp(_Interval):
    """min + i (max - min) / clients for client i, as in FedRN's code: the last client stays one
    step below `max`, so that 100 clients from 0 to 0.8 have .396 on average, where the paper
    says .4."""

    min: Fraction = 0.0
    max: Fraction

    def per_client(self, clients: int, rng: Generator) -> Floats:
        span = self.max - self.min
        return self.min + np.arange(clients) * span / clients


@component
class Discrete:
    """Uniform over a few values (FedDS: .1, .2, ... 1). `balanced` gives each value to equally many
    clients."""

    values: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1.0,
    )
    balanced: bool = False

    def per_client(self, clients: int, rng: Generator) -> Floats:
        values = np.array(self.values)
        if self.balanced:
            # Values are shuffled too, so that no value is favoured when they do not divide the
            # clients.
            repeated = np.resize(rng.permutation(values), clients)
            return rng.permutation(repeated)
        return rng.choice(values, clients)


@component
class RhoTau:
    """A client is noisy with probability `rho`; a noisy one has a rate ~ U(tau, 1) (FedCorr)."""

    rho: Fraction
    tau: Fraction

    def per_client(self, clients: int, rng: Generator) -> Floats:
        noisy = rng.random(clients) < self.rho
        return noisy * rng.uniform(self.tau, 1.0, clients)


@component
class Between(_Interval):
    """U(min, max), a draw for each client."""

    min: Fraction = 0.0
    max: Fraction = 1.0

    def per_client(self, clients: int, rng: Generator) -> Floats:
        return rng.uniform(self.min, self.max, clients)


@component
class Listed:
    """One rate a client, as written."""

    values: tuple[Fraction, ...]

    def per_client(self, clients: int, rng: Generator) -> Floats:
        if len(self.values) != clients:
            rule = f"noise.rate lists one rate for each of {clients} clients"
            raise ConfigError(broken(rule, len(self.values)))
        return np.array(self.values, np.float64)
