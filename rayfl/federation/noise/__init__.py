"""Label noise: which given label stands where a true one should, and how much of it each client
has."""

from __future__ import annotations

from typing import Protocol

from numpy.random import Generator

from rayfl.component import Registry
from rayfl.federation.arrays import Floats
from rayfl.federation.interfaces import Noise


class Rates(Protocol):
    """Says how noisy each client is meant to be."""

    def per_client(self, clients: int, rng: Generator) -> Floats:
        """One rate in [0, 1] for each client.

        Parameters
        ----------
        clients
            How many there are.
        rng
            The only source of randomness, so that the seed decides.
        """
        ...


RATES: Registry[Rates] = Registry(
    "noise rate",
    {
        "constant": "rayfl.federation.noise.rates:Constant",
        "ramp": "rayfl.federation.noise.rates:Ramp",
        "discrete": "rayfl.federation.noise.rates:Discrete",
        "rho_tau": "rayfl.federation.noise.rates:RhoTau",
        "uniform": "rayfl.federation.noise.rates:Between",
        "explicit": "rayfl.federation.noise.rates:Listed",
    },
)

NOISES: Registry[Noise] = Registry(
    "noise",
    {
        "none": "rayfl.federation.noise.given:Clean",
        "explicit": "rayfl.federation.noise.given:ExplicitLabels",
        "human": "rayfl.federation.noise.given:Human",
        "symmetric": "rayfl.federation.noise.symmetric:Symmetric",
        "uniform": "rayfl.federation.noise.symmetric:Uniform",
        "asymmetric": "rayfl.federation.noise.asymmetric:Asymmetric",
        "task": "rayfl.federation.noise.task:TaskNoise",
        "transition": "rayfl.federation.noise.transition:Transition",
        "instance": "rayfl.federation.noise.instance:Instance",
        "mixed": "rayfl.federation.noise.mixed:Mixed",
    },
    plugins="rayfl.noises",
)

__all__ = ["NOISES", "RATES", "Rates"]
