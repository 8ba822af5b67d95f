"""What an actor keeps between clients: the resident networks, the device, and how pixels become
network input."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.errors import RayflError, broken
from rayfl.learn.padding_free import Image, leave_out_padding
from rayfl.learn.resident import Resident, Vector, make_blank
from rayfl.learn.training import LocalTraining, Normalisation

T = TypeVar("T")
Build = Callable[..., nn.Module]


@dataclass
class Passes:
    """Samples that passed through networks since the last `take`; the networks count them."""

    forward: int = 0
    backward: int = 0
    open: int = 0
    """Passed forward with gradients since the last step."""
    counting: bool = True

    def add_forward(self, samples: int) -> None:
        """So many went forward."""
        if self.counting:
            self.forward += samples
            if torch.is_grad_enabled():
                self.open += samples

    def take(self) -> tuple[int, int]:
        taken = (self.forward, self.backward)
        self.forward = self.backward = 0
        return taken


class Learner:
    """One place that trains: resident networks by name, and the run's local settings.

    Parameters
    ----------
    build
        Makes the method's network, from first weights number i.
    training
        The run's local settings.
    normalisation
        Of images.
    device
        Where networks live.
    evaluation_batch
        Images of one pass without gradients.
    image
        The shape of an image, where kernels are narrowed.
    foreign
        Whether code from outside the package may be run here.
    """

    def __init__(
        self,
        build: Build,
        training: LocalTraining,
        normalisation: Normalisation,
        device: str = "cpu",
        evaluation_batch: int = 256,
        image: Image | None = None,
        foreign: bool = True,
    ) -> None:
        self.image = image
        self.foreign = foreign
        self.fresh: Callable[[int], Vector] = make_blank
        self.build = build
        self.training = training
        self.evaluation_batch = evaluation_batch
        self.device = torch.device(device)
        self.passes = Passes()
        # Seeded at the beginning of every visit: to make one takes as long as to draw from it.
        self.generator = torch.Generator()
        self._residents: dict[str, Resident] = {}
        self._loaded: set[str] = set()
        self._kept: dict[str, Any] = {}
        self._scale, self._shift = _affine(normalisation, self.device)
        self._smallest: int | None = None

    def resident(
        self,
        weights: NDArray[np.float32] | None = None,
        name: str = "first",
        build: Callable[[], nn.Module] | None = None,
    ) -> Resident:
        """The resident network of this name, with these weights.

        Residents belong to the place and serve one client after another. Without weights, a name
        that this visit has not loaded is refused: it would hold another client's. A `yield` of a
        `Fit` ends what was loaded before it.

        Parameters
        ----------
        weights
            A flat vector; None for what this visit has loaded.
        name
            `first` is the network that a `Fit` of one vector trains.
        build
            Makes a network of another kind on first use; by default the method's own.
        """
        found = self.shape_of(name, build)
        if weights is None:
            if name not in self._loaded:
                rule = "a resident network is given weights before it is used in a visit"
                remedy = f"Say learner.resident(weights, {name!r}): it holds another client's."
                raise RayflError(broken(rule, f"none for '{name}'", remedy))
            return found.move(self.fresh) if found.given else found
        self._loaded.add(name)
        # Its memory is an update by now (`Resident.give`).
        return found.move(self.fresh, weights) if found.given else found.load(weights)

    def shape_of(
        self, name: str = "first", build: Callable[[], nn.Module] | None = None
    ) -> Resident:
        """The resident of this name for its layout alone: what it holds is whoever's was there.

        Parameters
        ----------
        name
            As for `resident`.
        build
            As for `resident`.
        """
        if name not in self._residents:
            self._residents[name] = self._make_resident(self.build if build is None else build)
        return self._residents[name]

    def _make_resident(self, build: Callable[[], nn.Module]) -> Resident:
        made = Resident(build(), self.device, self.training.layout)
        if self.training.kernels == "reached":
            assert self.image is not None, "kernels are narrowed for images of a known size"
            leave_out_padding(made, self.image)
        self.count_passes(made.net)
        if self.training.compile != "never":
            # In place: parameters keep their names, and methods the module that they know.
            made.net.compile(mode=self.training.compile)
            self._count_compiled_calls(made.net)
        return made

    def _count_compiled_calls(self, net: nn.Module) -> None:
        """Have the calls of a compiled network counted from outside: a count would cut its graph in
        two."""
        compiled = cast(Callable[..., Any], net._compiled_call_impl)
        times = len(find_entrances(net))

        def call(*inputs: Any, **named: Any) -> Any:
            self.passes.add_forward(times * len(inputs[0]))
            return compiled(*inputs, **named)

        net._compiled_call_impl = call

    def count_passes(self, net: nn.Module) -> None:
        """Have a network count the samples that pass through it, for the books of the run.

        Parameters
        ----------
        net
            Any module: each pass goes through its first layer with weights once.
        """
        passes = self.passes

        for entrance in find_entrances(net):
            # A hook would have every call of the layer take torch's long way.
            entrance.forward = _count_calls(entrance.forward, passes)

    def first_weights(self, i: int = 0) -> Vector:
        """First weights number `i` of the method's network: the same bits at every place.

        Parameters
        ----------
        i
            0 are what the run begins with; others are drawn anew.
        """

        def draw() -> Vector:
            made = Resident(self.build(i), self.device, self.training.layout).dump()
            made.setflags(write=False)
            return made

        # The others are asked for once, and may be many.
        return self.keep("first weights", draw) if i == 0 else draw()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to that of the networks it went through, and count it.

        Parameters
        ----------
        loss
            A scalar.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        self.passes.backward += self.passes.open
        self.passes.open = 0

    def begin_visit(self, rng: np.random.Generator) -> int:
        """Nothing is loaded, and everything that can be drawn from is seeded by the client's
        stream; with what."""
        self._loaded.clear()
        self.passes.open = 0
        seed = draw_seed(rng)
        self.seed_streams(seed)
        return seed

    def forget_loaded(self) -> None:
        """What was loaded before a training is somebody else's after it."""
        self._loaded.clear()

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Anything else that a place wants to keep between clients, made on first use. It must not
        depend on the client: whoever comes next finds it as it is left.

        Parameters
        ----------
        name
            What it is found by.
        make
            Makes it.
        """
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
        ours = torch.from_numpy(np.array(x, copy=not x.flags.writeable))
        stored = ours.to(self.device).permute(0, 3, 1, 2)
        return stored if self.training.layout == "channels_last" else stored.contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Raw pixels (0 .. 255, any type) as network input."""
        # One pass over the images instead of two.
        return torch.addcmul(self._shift, pixels.to(torch.float32), self._scale)

    def seed_streams(self, seed: int) -> None:
        """Bind the draws of torch (dropout), and of the global streams of numpy and Python."""
        # torch.manual_seed would visit every kind of device, and where CUDA sleeps keep a traceback
        # for each call.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        if not self.foreign:
            return
        # Published code draws from these; left alone, they would go on from client to client. Our
        # own draws from neither, and at small clients to seed them is a fifth of a visit.
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
        random.seed(seed)

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
        devices = [self.device] if self.device.type == "cuda" else []
        # Dropout here must not use up draws of the client that happens to come first.
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            net = self.build().to(self.device).train()
            try:
                net(self.normalise(self.pixels(x[:1])))
                self._smallest = 1
            except ValueError:
                self._smallest = 2


def _count_calls(forward: Callable[..., Any], passes: Passes) -> Callable[..., Any]:
    """The same, with its samples in the books."""

    def counted(x: Tensor, *more: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            passes.add_forward(len(x))
        return forward(x, *more, **named)

    return counted


def find_entrances(net: nn.Module) -> list[nn.Module]:
    """The layers that every pass through a network goes through once: the first one with weights;
    of several networks in one (`networks`), the first of each."""
    inner = getattr(net, "networks", None)
    if inner is not None:
        return [layer for part in inner for layer in find_entrances(part)]
    for module in net.modules():
        if any(True for _ in module.parameters(recurse=False)):
            return [module]
    return [net]


def draw_seed(rng: np.random.Generator) -> int:
    """`rng.integers(1 << 62)`, in a fifth of the time: below a power of two that is one draw's
    upper bits."""
    return int(rng.bit_generator.random_raw()) >> 2


def _affine(normalisation: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and shift that turn 0 .. 255 into (pixel / 255 - mean) / std."""
    mean = torch.tensor(normalisation.mean, dtype=torch.float32, device=device).view(1, -1, 1, 1)
    std = torch.tensor(normalisation.std, dtype=torch.float32, device=device).view(1, -1, 1, 1)
    return 1 / (255 * std), -mean / std
