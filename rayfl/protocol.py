"""The seam between a method and the place where its phases run.

A method is an `Algorithm`: it owns its round and speaks to a `Fleet`. A *phase* is a plain function
`phase(client, **inputs) -> Out`; it runs on an actor or in this process and cannot tell which. What
it returns has three destinations: a small `report` for the coordinator, a heavy `update` that is
only ever averaged and stays where it was made, and durable `state` that this client, or a
neighbour, wants again.

A phase that trains yields `Fit`s (rayfl/learn/local_fit.py) and leaves to the place how they are
carried out. docs/methods.md tells the life of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Images as Images, Labels as Labels, Vector as Vector
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.learn.local_fit import Fitting

if TYPE_CHECKING:
    import torch

    from rayfl.learn.learner import Learner
    from rayfl.learn.training import Training

ClientId = int
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
    """A named set (`public`, ...) that lies on every node already: naming it sends nothing."""

    handle: str = ""


@dataclass(frozen=True)
class Shard:
    """Images and labels as a phase sees them, both read-only; `y` is None where labels are out of
    bounds."""

    x: Images
    y: Labels | None
    features: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Client:
    """One logical client during one phase.

    Parameters
    ----------
    id
        Its number; the server's own tasks are negative.
    x
        Its images, uint8 (N, height, width, channels), read-only.
    labels
        Its labels as the scenario gives them, None where they are out of bounds: read `y`.
    state
        What its earlier phases left in `Out.state`, read-only. Two keys have a meaning of their
        own: `y` are labels that replace the given ones from the next phase on, and `kept` is a
        mask of the samples that the client trains on; the experiment marks both against the truth.
    rng
        Its stream, fixed by (seed, round, client, how often it was visited in this round before).
        torch's default generator and the global streams of numpy and Python are seeded from it.
    learner
        The place: its resident networks, device and settings (see rayfl/learn/learner.py).
    features
        What frozen encoders see in `x`, by the encoder's name: those that the method asked for.
    classes
        How many classes the run's networks tell apart.
    """

    id: ClientId
    x: Images
    labels: Labels | None
    state: Mapping[str, Any]
    rng: np.random.Generator
    learner: Learner
    features: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    classes: int = 0

    def __post_init__(self) -> None:
        for name, rows in self.features.items():
            if len(rows) != len(self.x):
                raise RayflError(
                    broken(
                        f"features of a client have a row for each of its images ({len(self.x)})",
                        f"{len(rows)} rows of '{name}'",
                        "Use client.on(images), which leaves features of other images behind.",
                    )
                )

    @property
    def y(self) -> Labels:
        """The labels that the client believes: its relabelled ones once it has stored
        `state["y"]`."""
        if self.labels is None:
            rule = "labels are read where the method may see them"
            who = "the server" if self.id < 0 else f"client {self.id}"
            remedy = (
                "Declare the set in the method's `needs` as `labels`, or train without labels: "
                "clients have none under client_labels = False."
            )
            raise RayflError(broken(rule, f"{who}, whose labels are out of bounds", remedy))
        relabelled: Labels = self.state.get("y", self.labels)
        return relabelled

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """How many samples of each class it believes to hold."""
        return np.bincount(self.y, minlength=self.classes)

    def on(self, data: Shard | Images, y: Labels | None = None) -> Client:
        """The same visitor on other data: a named set, or some images with these labels.

        Parameters
        ----------
        data
            A `Shard` (`fleet.data(...)`), whose labels and features come along, or images.
        y
            Labels of the images; None leaves them without.
        """
        shard = data if isinstance(data, Shard) else Shard(data, y)
        return replace(self, x=shard.x, labels=shard.y, state={}, features=shard.features)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Out:
    """What a phase leaves: see the module's first paragraph.

    Parameters
    ----------
    report
        Small values for the coordinator, below 1 MB. Names that begin with an underscore are the
        simulator's own: a real client would not send them, and they cost nothing.
    update
        A float32 vector, or named ones; a bare vector is called `w`.
    state
        What this client, or a neighbour, wants again. States of several maps are merged by key.
    unsent
        Bytes of the update that the server has already: a real client leaves them out.
    """

    report: Report = field(default_factory=dict)
    update: Vector | Mapping[str, Vector] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    unsent: int = 0


Phase = Callable[..., "Out | Fitting[Out]"]
"""A pure function of a client and its inputs; a generator where it trains."""


class NobodyLeft(RayflError):
    """Every client of a map diverged: the round is void and the model stays."""


class Replies(Mapping[ClientId, Report]):
    """The reports of a map by ascending client id, and a hold on the updates that lie at the
    actors.

    Clients whose update is not finite are not in it; they are named in `diverged`.
    `clients | server` joins two maps of one round, so that one mean can go over both.
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

    def __or__(self, other: Replies) -> Replies:
        """Both maps as one; no client may be in both."""
        raise NotImplementedError

    def among(self, clients: Iterable[ClientId]) -> Replies:
        """The replies of these clients alone; those that did not reply are not missed."""
        raise NotImplementedError

    def ref(self, client: ClientId, key: str | None = None) -> Ref:
        """A reference to one client's update.

        Parameters
        ----------
        client
            Whose.
        key
            Which of its named updates; not needed where there is one.
        """
        raise NotImplementedError

    def start(self, key: str | None = None) -> Ref:
        """The model that all of them began with: the map's input of the update's name."""
        raise NotImplementedError

    def mean(self, weights: Mapping[ClientId, float], key: str | None = None) -> Ref:
        """The weighted mean of updates: the same bits wherever they lie.

        Parameters
        ----------
        weights
            By client, not negative; their scale does not matter. Whoever is not named does not
            count.
        key
            Which of the named updates; not needed where there is one.
        """
        raise NotImplementedError

    def examine(
        self,
        phase: Phase,
        clients: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **inputs: Any,
    ) -> dict[ClientId, Report]:
        """Run a phase of the *server* on updates where they lie; the reports by client.

        Parameters
        ----------
        phase
            Gets the update as inputs under its names (`w` where it is a bare vector). Its client
            is the server: no images, no labels, and a stream of its own for every update.
        clients
            Whose updates; by default of all who left one.
        each
            Inputs for single updates.
        inputs
            Inputs for all of them.
        """
        raise NotImplementedError

    @property
    def last(self) -> Ref:
        """What the last client of a chain left."""
        raise NotImplementedError


class Served:
    """What the server's own phase left: its report, and its updates by name."""

    def __init__(self, report: Report, updates: Mapping[str, Ref]) -> None:
        self.report = report
        self.updates = updates

    def __getitem__(self, name: str) -> Ref:
        if name not in self.updates:
            known = ", ".join(self.updates) or "none"
            rule = f"the updates that the server's phase left are {known}"
            raise ConfigError(broken(rule, f"'{name}'", "Return it in Out(update={...})."))
        return self.updates[name]


class Fleet(Protocol):
    """The clients, the server and the places where their phases run."""

    clients: Sequence[ClientId]
    """Those that own at least one sample, ascending."""
    shape: tuple[int, int, int]
    """(height, width, channels) of the images."""
    classes: int
    """How many classes the run's networks tell apart."""
    cohort: int
    """How many clients take part in a round."""
    training: Training
    """The run's rounds, participation and local settings."""

    def size(self, owner: ClientId | str) -> int:
        """How many samples an owner holds: a client, or a named set."""

    def sample(self, t: int, among: Iterable[ClientId] | None = None) -> list[ClientId]:
        """The participants of round `t`, drawn uniformly without replacement.

        Parameters
        ----------
        t
            The round. `sample(t)` is the same cohort however often it is asked for.
        among
            Draw from these only. The second such draw of a round is another one than the first.
        """

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        """Run `phase` for every client; its effects on state appear after the whole map.

        Parameters
        ----------
        phase
            A module-level function.
        clients
            Whom to visit; `SERVER` is one of them.
        each
            Inputs for single clients. References in inputs (also inside lists and mappings) arrive
            as the values that they refer to.
        shared
            Inputs for all of them; the method itself is `method=self`.
        """

    def chain(
        self,
        phase: Phase,
        clients: Sequence[ClientId],
        w: Ref,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        """One client after another, at one place and in one call: each begins with the update that
        the one before it left. Whoever diverges is passed over. `Replies.last` is what the last
        one left.

        Parameters
        ----------
        phase
            As for `map`; it takes an input `w`.
        clients
            Whom to visit, in this order.
        w
            What the first one begins with.
        each, shared
            As for `map`.
        """

    def serve(self, phase: Phase, **inputs: Any) -> Served:
        """Run `phase` at the server, with these inputs."""

    def combine(self, *terms: tuple[float, Ref]) -> Ref:
        """The linear combination of vectors, computed in float64 at the server: the sum of all
        terms, each a factor and a reference.

        >>> moved = fleet.combine((1.0, w), (-1.0, mean))  # doctest: +SKIP
        """

    def initial(self, i: int = 0) -> Ref:
        """First weights number `i` of the method's network; 0 is what the run begins with."""

    def state(self, client: ClientId, key: str) -> Ref | None:
        """A snapshot of what a client's durable state has under `key`, for a neighbour to read;
        None before it was ever stored."""

    def put(self, value: Any) -> Ref:
        """Store a value once for all places."""

    def get(self, ref: Ref) -> Any:
        """Fetch what `ref` refers to, to the coordinator."""

    def data(self, name: str) -> DataRef:
        """The set public, validation or labelled: in a phase a `Shard`, with labels if `needs` says
        so."""

    def log(self, **metrics: float) -> None:
        """Measures of the method's own, into this round's metrics."""

    def estimate(self, name: str, values: Mapping[ClientId, float]) -> None:
        """What the method believes of each client, as values by client: the experiment compares
        them with the truth (`NAME/noise_correlation`)."""

    def answered(self, held: str, labels: Mapping[ClientId, NDArray[Any]]) -> None:
        """What each client's model says of the set `held`, as labels: the experiment marks it."""

    def leave(self, name: str, array: NDArray[Any]) -> None:
        """An array worth drawing, of any shape: of those of one name a run keeps the last."""

    def rng(self, t: int, purpose: str) -> np.random.Generator:
        """A stream for the coordinator's own draws, fixed by (seed, round `t`, purpose)."""


State = Any
"""What a method carries: frozen dataclasses, mappings, tuples, arrays, numbers, text and Refs."""


class Blueprint(Protocol):
    """How the configured network is built, for methods that train something made from it."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the images."""

    @property
    def classes(self) -> int:
        """How many classes there are to tell apart."""

    def __call__(self, i: int = 0) -> torch.nn.Module:
        """The network with first weights number `i`: 0 are the run's own, others differ."""

    def width(self, encoder: str) -> int:
        """How many features the method's encoder of this name gives an image."""


Model = Ref | tuple[Ref, ...]
"""One set of weights, or several whose probabilities are averaged."""


class Algorithm:
    """A method. Subclasses are frozen dataclasses (`@component`) whose fields are hyper-parameters.

    The class variables say what the method asks of the experiment, so that it can be refused before
    the first round. Its functions are given `fleet`: the clients, the server and the places where
    phases run; `state`: what the method carries from round to round; `t`: the round, from 0;
    `client`: whose model is asked for where models are `personal`, else None; `blueprint`: what
    builds the configured network; `training`: the run's rounds, participation and local settings;
    `clients`: how many there are.
    """

    citation: ClassVar[str] = ""
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {}
    """Named sets that the method reads, and whether it may see their labels."""
    client_labels: ClassVar[bool] = True
    """Whether clients own labels at all."""
    labels: ClassVar[Literal["given", "clean", "true"]] = "given"
    """The labels that clients get: as given; only the samples whose label is right; or the true
    ones."""
    personal: ClassVar[bool] = False
    """Whether `model` differs between clients."""
    deviations: ClassVar[tuple[str, ...]] = ()
    """Where this implementation departs from its paper, one sentence each."""
    metrics: ClassVar[Mapping[str, str]] = {}
    """What the measures mean that it logs, by name."""

    def encoders(self) -> Mapping[str, Any]:
        """Frozen encoders whose features of every client's (and named set's) images the phases
        want, by name."""
        return {}

    def check(self, fleet: Fleet) -> None:
        """Refuse, before the first round, a federation that this method cannot work on."""

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        """What this method promises and does not do in a run like this one, a sentence each; told
        before the first round."""
        yield from ()

    def network(self, blueprint: Blueprint) -> torch.nn.Module:
        """The network that the method trains, made from the configured one."""
        return blueprint()

    def init(self, fleet: Fleet, model: Ref) -> State:
        """The state before the first round; `model` are the network's first weights."""
        raise NotImplementedError

    def round(self, state: State, fleet: Fleet, t: int) -> State:
        """One round, from state to state."""
        raise NotImplementedError

    def model(self, state: State, fleet: Fleet, client: ClientId | None = None) -> Ref:
        """The weights that are tested: the global ones, or this client's."""
        raise NotImplementedError

    def further_models(
        self, state: State, fleet: Fleet, client: ClientId | None = None
    ) -> Mapping[str, Model]:
        """Further models that are worth testing, by name: the other network of a pair, a teacher;
        or an ensemble, as a tuple. Their metrics are `test/NAME/accuracy` and so on."""
        return {}

    def clusters(self, state: State) -> Mapping[ClientId, int]:
        """Which cluster each client is in, for methods that cluster them."""
        return {}
