"""The seam between a method and the place where its phases run.

A method is an `Algorithm`: it owns its round and speaks to a `Fleet`. A *phase* is a plain function
`phase(client, **inputs) -> Out`; it runs on an actor or in this process and cannot tell which. What
it returns has three destinations: a small `report` for the coordinator, a heavy `update` that is
only ever averaged and stays where it was made, and durable `state` that this client, or a
neighbour, wants again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import ConfigError, RayflError, broken

if TYPE_CHECKING:
    import torch

    from rayfl.learn.learner import Learner
    from rayfl.learn.local_fit import Training as LeftToThePlace
    from rayfl.learn.training import Training

ClientId = int
Vector = NDArray[np.float32]
Report = Mapping[str, Any]

SERVER: ClientId = -1
"""The server's own tasks. Every negative id is the server: `SERVER - i` is its i-th task of one
map."""

REPORT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Ref:
    """A value that lives elsewhere. `key` picks one entry of a stored mapping; `nbytes` is what
    sending it costs."""

    handle: Any
    key: str | None = None
    nbytes: int = 0


@dataclass(frozen=True)
class DataRef(Ref):
    """A named set (`test`, `public`, ...) that lies on every node already: naming it sends
    nothing."""

    handle: str = ""


@dataclass(frozen=True)
class Shard:
    """Images and labels as a phase sees them, both read-only; `y` is None where labels are out of
    bounds."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64] | None
    features: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Client:
    """One logical client during one phase."""

    id: ClientId
    x: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    state: Mapping[str, Any]
    rng: np.random.Generator
    learner: Learner
    features: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """What frozen encoders see in `x`, by the encoder's name: those that the method asked for."""

    @property
    def y(self) -> NDArray[np.int64]:
        """The labels that the client believes: its relabelled ones once it has stored
        `state["y"]`."""
        if self.labels is None:
            raise RayflError(
                f"client {self.id} has no labels: this method declares client_labels = False"
            )
        relabelled: NDArray[np.int64] = self.state.get("y", self.labels)
        return relabelled

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Out:
    """What a phase leaves: see the module's first paragraph. An update is a vector, or named
    vectors."""

    report: Report = field(default_factory=dict)
    update: Vector | Mapping[str, Vector] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)


Phase = Callable[..., "Out | LeftToThePlace[Out]"]
"""A pure function of a client and its inputs. A generator yields the trainings that it leaves to
the place."""


class NobodyLeft(RayflError):
    """Every client of a map diverged: the round is void and the model stays."""


class Replies(Mapping[ClientId, Report]):
    """The reports of one map by ascending client id, and a hold on the updates that lie at the
    actors.

    Clients whose update is not finite are not in it; they are named in `diverged`.
    """

    diverged: tuple[ClientId, ...] = ()

    def __init__(self, reports: Mapping[ClientId, Report]) -> None:
        # Ascending, so that no loop over replies can depend on who answered first.
        self._reports = {client: reports[client] for client in sorted(reports)}

    def __getitem__(self, client: ClientId) -> Report:
        return self._reports[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._reports)

    def __len__(self) -> int:
        return len(self._reports)

    def mean(self, weights: Mapping[ClientId, float], key: str = "w") -> Ref:
        """The weighted mean of the updates under `key`: partial sums where they lie, then one; same
        bits anywhere."""
        raise NotImplementedError

    def examine(self, phase: Phase, **inputs: Any) -> dict[ClientId, Report]:
        """Run a phase of the *server* on every update where it lies (it arrives as `w`); the
        reports by client."""
        raise NotImplementedError

    def checked_weights(self, weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
        """The weights by ascending id, without zeros; refused when they cannot make a mean."""
        strangers = sorted(set(weights) - set(self))
        if strangers:
            raise ConfigError(broken("mean takes clients that replied", f"client {strangers[0]}"))
        chosen = {client: float(weights[client]) for client in sorted(weights)}
        for client, weight in chosen.items():
            if not math.isfinite(weight) or weight < 0:
                raise ConfigError(
                    broken(
                        "weights of a mean are finite and not negative",
                        f"{weight} (client {client})",
                    )
                )
        total = sum(chosen.values())
        if not 0 < total < math.inf:
            rule = f"weights of a mean have a {'finite' if total else 'positive'} sum"
            raise ConfigError(broken(rule, f"{total} over {len(chosen)}"))
        # Scaled by a power of two, which is exact, so that no product with a weight leaves the
        # range of float64.
        exponent = math.frexp(total)[1]
        return {
            client: math.ldexp(weight, -exponent) for client, weight in chosen.items() if weight > 0
        }


class Fleet(Protocol):
    """The clients, the server and the places where their phases run."""

    clients: Sequence[ClientId]
    """Those that own at least one sample, ascending."""
    shape: tuple[int, int, int]
    """(height, width, channels) of the images."""
    training: Training
    """The run's rounds, participation and local settings."""

    def size(self, client: ClientId) -> int:
        """How many samples a client holds."""

    def sample(self, t: int, among: Iterable[ClientId] | None = None) -> list[ClientId]:
        """The participants of round `t`: fixed by (seed, round), drawn uniformly without
        replacement."""

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        """Run `phase` for every client; its effects on state appear after the whole map."""

    def serve(self, phase: Phase, **inputs: Any) -> Ref:
        """Run `phase` at the server; the update that it leaves."""

    def state(self, client: ClientId, key: str) -> Ref | None:
        """A snapshot of a client's durable state, for a neighbour to read; None before it was ever
        stored."""

    def put(self, value: Any) -> Ref:
        """Store a value once for all places."""

    def get(self, ref: Ref) -> Any:
        """Fetch a value to the coordinator."""

    def data(self, name: str) -> DataRef:
        """A named set of the scenario: test, public, validation or labelled; or encoder
        features."""

    def log(self, **metrics: float) -> None:
        """Measures of the method's own, into this round's metrics."""

    def estimate(self, name: str, values: Mapping[ClientId, float]) -> None:
        """What the method believes of each client (its reliability, say): the experiment compares
        it with the truth."""

    def answered(self, held: str, labels: Mapping[ClientId, NDArray[Any]]) -> None:
        """What each client's model says of a named set: the experiment, which knows the truth,
        marks it."""

    def leave(self, name: str, array: NDArray[Any]) -> None:
        """An array worth drawing (a similarity matrix, a merge history): the last one of a run is
        kept."""

    def rng(self, t: int, purpose: str) -> np.random.Generator:
        """A stream for the coordinator's own draws, fixed by (seed, round, purpose)."""


State = Any
"""What a method carries from round to round: frozen dataclasses, mappings, tuples, arrays, numbers,
text and Refs."""


class Algorithm:
    """A method. Subclasses are frozen dataclasses whose fields are hyper-parameters.

    The class variables say what the method asks of the experiment, so that it can be refused before
    the first round."""

    citation: ClassVar[str] = ""
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {}
    """Named sets that the method reads, and whether it may see their labels."""
    client_labels: ClassVar[bool] = True
    """Whether clients own labels at all."""
    labels: ClassVar[Literal["given", "clean", "true"]] = "given"
    """The labels that clients get: as given; only the samples whose label is right; or the true
    ones."""
    personal: ClassVar[bool] = False
    """Whether `model(state, client)` differs between clients."""
    deviations: ClassVar[tuple[str, ...]] = ()
    """Where this implementation departs from its paper, one sentence each."""

    def encoders(self) -> Mapping[str, Any]:
        """Frozen encoders whose features of every client's (and named set's) images the phases
        want, by name."""
        return {}

    def check(self, fleet: Fleet) -> None:
        """Refuse, before the first round, a federation that this method cannot work on."""

    def network(self, network: torch.nn.Module) -> torch.nn.Module:
        """The network that the method trains, made from the configured one."""
        return network

    def init(self, fleet: Fleet, model: Ref) -> State:
        raise NotImplementedError

    def round(self, state: State, fleet: Fleet, t: int) -> State:
        raise NotImplementedError

    def model(self, state: State, client: ClientId | None = None) -> Ref:
        raise NotImplementedError

    def clusters(self, state: State) -> Mapping[ClientId, int]:
        """Which cluster each client is in, for methods that cluster them."""
        return {}


RngFactory = Callable[[int, ClientId], np.random.Generator]
