"""What an actor keeps between clients: the resident networks, the device, and how pixels become
network input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.learn.reached import Image, leave_out_padding
from rayfl.learn.resident import Resident, Vector, blank
from rayfl.learn.training import LocalTraining, Normalisation

T = TypeVar("T")


@dataclass
class Passes:
    """Sample passes through a network since the last `take`."""

    forward: int = 0
    backward: int = 0

    def take(self) -> tuple[int, int]:
        taken = (self.forward, self.backward)
        self.forward = self.backward = 0
        return taken


class Learner:
    """One place that trains: a first resident network, further copies on demand, and the run's
    local settings."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        training: LocalTraining,
        normalisation: Normalisation,
        device: str = "cpu",
        evaluation_batch: int = 256,
        image: Image | None = None,
    ) -> None:
        self.image = image
        self.fresh: Callable[[int], Vector] = blank
        self.build, self.training, self.evaluation_batch = build, training, evaluation_batch
        self.device = torch.device(device)
        self.passes = Passes()
        # Seeded at the beginning of every visit: to make one takes as long as to draw from it.
        self.generator = torch.Generator()
        self._residents: dict[str, Resident] = {}
        self._kept: dict[str, Any] = {}
        self._scale, self._shift = affine(normalisation, self.device)
        self._smallest: int | None = None

    def resident(self, weights: NDArray[np.float32] | None = None, name: str = "first") -> Resident:
        """The resident network of this name (made on first use), with these weights if given."""
        if name not in self._residents:
            made = self._residents[name] = Resident(self.build(), self.device, self.training.layout)
            if self.training.kernels == "reached":
                assert self.image is not None, "kernels are narrowed for images of a known size"
                leave_out_padding(made, self.image)
            if self.training.compile != "never":
                # In place: parameters keep their names, and methods the module that they know.
                made.net.compile(mode=self.training.compile)
        found = self._residents[name]
        # Its memory is an update by now (`Resident.give`).
        if found.given:
            return found.move(self.fresh, weights)
        return found if weights is None else found.load(weights)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Anything else that a place wants to keep between clients, made on first use."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast(T, self._kept[name])

    def precision(self) -> AbstractContextManager[object]:
        """What a loss is computed in: bfloat16 where torch holds it to be safe, or float32
        throughout."""
        if self.training.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def pixels(self, x: NDArray[np.uint8]) -> Tensor:
        """Raw images on the device: uint8, (N, C, H, W), in the run's layout."""
        # torch warns of memory that is read-only, even if nobody means to write.
        stored = (
            torch.from_numpy(np.array(x, copy=not x.flags.writeable))
            .to(self.device)
            .permute(0, 3, 1, 2)
        )
        return stored if self.training.layout == "channels_last" else stored.contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Raw pixels (0 .. 255, any type) as network input."""
        # One pass over the images instead of two.
        return torch.addcmul(self._shift, pixels.to(torch.float32), self._scale)

    def seed(self, rng: np.random.Generator) -> None:
        """Bind torch's own draws (dropout) to a client's stream."""
        seed = fresh_seed(rng)
        # torch.manual_seed would visit every kind of device, and where CUDA sleeps keep a traceback
        # for each call.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @property
    def smallest_batch(self) -> int:
        """2 where the network cannot train on one sample (BatchNorm over a single value), else
        1."""
        if self._smallest is None:
            raise RuntimeError("smallest_batch is known after `probe`")
        return self._smallest

    def probe(self, x: NDArray[np.uint8]) -> None:
        """Find out, once, whether one sample makes a training batch."""
        if self._smallest is not None:
            return
        # Dropout here must not use up draws of the client that happens to come first.
        with (
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            torch.no_grad(),
        ):
            net = self.build().to(self.device).train()
            try:
                net(self.normalise(self.pixels(x[:1])))
                self._smallest = 1
            except ValueError:
                self._smallest = 2


def fresh_seed(rng: np.random.Generator) -> int:
    """`rng.integers(1 << 62)`, in a fifth of the time: below a power of two that is one draw's
    upper bits."""
    return int(rng.bit_generator.random_raw()) >> 2


def affine(normalisation: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and shift that turn 0 .. 255 into (pixel / 255 - mean) / std."""
    mean = torch.tensor(normalisation.mean, dtype=torch.float32, device=device).view(1, -1, 1, 1)
    std = torch.tensor(normalisation.std, dtype=torch.float32, device=device).view(1, -1, 1, 1)
    return 1 / (255 * std), -mean / std
