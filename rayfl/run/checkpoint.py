"""Checkpoints: what a run needs to go on, written atomically to a local path or any pyarrow
filesystem URI.

    <uri>/round-000010.json     the manifest, written last: names and sha256 of the files below
    <uri>/round-000010.state    the method's state and the history so far
    <uri>/clients/7.w.000010    one entry of one client's durable state, written when it changed
    <uri>/left_out.json         the visits that are left out of the run, where there are any

Nothing is a pickle. The manifest has a hash of itself, and must agree with its file's name, with
the names of the files in it and with the history: one that is damaged, or names a damaged file, is
passed over for the one before it. On local file systems all of a checkpoint has reached the disk
before the one before it is dropped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rayfl.errors import StorageError, broken
from rayfl.fleet.absences import Absence
from rayfl.run.checkpoint_files import check_uri, open_files
from rayfl.run.codec import check_state, pack_tree, unpack_tree
from rayfl.secrets import describe_error, mask_secrets

log = logging.getLogger("rayfl")

FORMAT = 2
UNSEALED = 1
"""The format of older manifests, which have no hash of themselves."""
ABSENCES = "left_out.json"
FIELDS = {"format", "round", "state", "clients", "meta"}
KEPT = 2
WRITER_SECONDS = 60.0
"""How long a coordinator waits for the one before it, which is being killed, to be gone."""


@dataclass(frozen=True)
class Snapshot:
    """A run after `round` finished rounds. `clients[id][key]` are references; `meta` says whose it
    is."""

    round: int
    state: Any
    clients: Mapping[int, Mapping[str, Any]]
    history: list[dict[str, Any]]
    meta: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run below one URI."""

    def __init__(self, uri: str) -> None:
        self.uri = mask_secrets(uri)
        with _refuse_place(uri):
            self.files = open_files(uri)
        self._written: dict[tuple[int, str], tuple[Any, str, str]] = {}
        self._manifests: dict[int, Mapping[str, Any]] = {}
        self._unsettled: list[str] = []

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Nobody else writes here meanwhile, where the place has locks."""
        with _refuse_place(self.uri):
            lock = self.files.lock(WRITER_SECONDS)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    # -- writing -----------------------------------------------------------------------------------

    def write(
        self, snapshot: Snapshot, fetch: Callable[[Any], Any], leaf: Callable[[Any], Any]
    ) -> None:
        """Write a snapshot: `fetch` brings a client's entry here, `leaf` packs references inside
        the state."""
        try:
            manifest = self._write_parts(snapshot, fetch, leaf)
            # The manifest must not be there before what it names is, and what was there before it
            # must not go before the manifest is there: also where the power is lost.
            self._settle()
            name = manifest_name(snapshot.round)
            self.files.write_settled(name, json.dumps(manifest).encode())
            self._manifests[snapshot.round] = manifest
            self._drop_others()
        except OSError as error:
            rule = f"the checkpoint of round {snapshot.round} could not be written to {self.uri}"
            remedy = (
                "Free some space or set checkpoint.uri; the run can go on from the checkpoint "
                "before it."
            )
            raise StorageError(f"{rule}: {error}. {remedy}") from error

    def _write_parts(
        self, snapshot: Snapshot, fetch: Callable[[Any], Any], leaf: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Everything but the manifest, which is returned."""
        clients: dict[str, dict[str, list[str]]] = {}
        for client, entries in snapshot.clients.items():
            named = clients[str(client)] = {}
            for key, ref in entries.items():
                named[key] = self._entry(client, key, ref, snapshot.round, fetch)
        blob = pack_tree({"state": snapshot.state, "history": json.dumps(snapshot.history)}, leaf)
        name = state_name(snapshot.round)
        self._put(name, blob)
        return seal_manifest(
            {
                "format": FORMAT,
                "round": snapshot.round,
                "state": [name, hash_blob(blob)],
                "clients": clients,
                "meta": dict(snapshot.meta),
            }
        )

    def _entry(
        self, client: int, key: str, ref: Any, round_: int, fetch: Callable[[Any], Any]
    ) -> list[str]:
        known = self._written.get((client, key))
        if known is None or known[0] is not ref:
            value = fetch(ref)
            check_state(value, modules=(), path=f"the state '{key}' of client {client}")
            blob = pack_tree(value)
            known = (ref, f"{entry_stem(client, key)}{round_:06d}", hash_blob(blob))
            self._put(known[1], blob)
            self._written[client, key] = known
        return [known[1], known[2]]

    def _put(self, name: str, blob: bytes) -> None:
        self.files.write(name, blob)
        self._unsettled.append(name)

    def _settle(self) -> None:
        self.files.settle(self._unsettled)
        self._unsettled.clear()

    def _drop_others(self) -> None:
        """Keep the last checkpoints that this run wrote or went on from, and what they name;
        damaged ones go."""
        for number in sorted(self._manifests)[:-KEPT]:
            del self._manifests[number]
        named = {name for known in self._manifests.values() for name in entry_names(known)}
        for number in self.rounds():
            if number not in self._manifests:
                self.files.delete(manifest_name(number))
                self.files.delete(state_name(number))
        for name in self.files.names("clients"):
            if f"clients/{name}" not in named:
                self.files.delete(f"clients/{name}")

    def note_absences(self, decided: Mapping[Absence, str]) -> None:
        """Record whose visits are left out, before a round counts in which they are."""
        entries = [[*absence, why] for absence, why in sorted(decided.items())]
        try:
            self.files.write_settled(ABSENCES, json.dumps(entries).encode())
        except OSError as error:
            rule = f"whose visits are left out could not be written to {self.uri}"
            raise StorageError(f"{rule}: {error}. Free some space.") from error

    def absences(self) -> dict[Absence, str]:
        """Whose visits were left out so far."""
        if ABSENCES not in self.files.names():
            return {}
        try:
            entries = json.loads(self.files.read(ABSENCES))
            return {Absence(int(t), int(k), int(visit)): str(why) for t, k, visit, why in entries}
        except (ValueError, TypeError) as error:
            rule = f"{self.uri}/{ABSENCES} lists visits as [round, client, visit, why]"
            remedy = "Without it the run would have other bits: begin it anew."
            raise StorageError(broken(rule, str(error), remedy)) from error

    def hand_on(self, uri: str, digest: str | None = None) -> int:
        """Copy the newest checkpoint to another place; its round. A digest makes it the beginning
        of another run.

        That run's configuration then decides what comes after; the scenario must be the same one.
        """
        number = self.rounds()[-1]
        other = CheckpointStore(uri)
        manifest = self._manifest(number)
        for entries in [{"state": manifest["state"]}, *manifest["clients"].values()]:
            for name, known in entries.values():
                other._put(name, self._read(name, known))
        other._settle()
        meta = manifest["meta"] if digest is None else {**manifest["meta"], "digest": digest}
        copy = seal_manifest({**manifest, "format": FORMAT, "meta": meta})
        other.files.write_settled(manifest_name(number), json.dumps(copy).encode())
        return number

    # -- reading -----------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        """The rounds that have a manifest."""
        names = set(self.files.names())
        stems = [name[6:-5] for name in names if name.startswith("round-")]
        numbers = [int(stem) for stem in stems if stem.isdecimal()]
        return sorted(number for number in numbers if manifest_name(number) in names)

    def newest(self, restore: Callable[[Mapping[str, Any]], Snapshot]) -> Snapshot | None:
        """The newest checkpoint that `restore` accepts; damaged ones are named and passed over."""
        problems = []
        for number in reversed(self.rounds()):
            try:
                manifest = self._manifest(number)
                snapshot = restore(manifest)
            except (
                StorageError,
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                RecursionError,
            ) as error:
                problems.append(f"round {number}: {error}")
                log.warning(
                    "checkpoint of round %d is not usable and is passed over: %s", number, error
                )
                continue
            self._manifests[number] = manifest
            return snapshot
        if problems:
            raise StorageError(f"no usable checkpoint in {self.uri}: " + "; ".join(problems))
        return None

    def state(
        self, manifest: Mapping[str, Any], modules: set[str], leaf: Callable[[Any], Any]
    ) -> tuple[Any, list[Any]]:
        """The method's state and the history that a manifest names."""
        tree = unpack_tree(self._read(*manifest["state"]), modules, leaf)
        history = json.loads(tree["history"])
        rounds = [record["round"] for record in history]
        if rounds != list(range(1, manifest["round"] + 1)):
            rule = f"the history of round {manifest['round']} has every round up to it once"
            raise StorageError(broken(rule, f"{len(rounds)}, the last {rounds[-1:]}"))
        return tree["state"], history

    def entry(
        self, client: int, key: str, named: tuple[str, str], put: Callable[[Any], Any]
    ) -> Any:
        """One entry of a client's state, stored by `put`; remembered, so that it is not written
        again unchanged."""
        ref = put(unpack_tree(self._read(*named)))
        self._written[client, key] = (ref, *named)
        return ref

    def _manifest(self, number: int) -> dict[str, Any]:
        manifest = json.loads(self.files.read(manifest_name(number)))
        check_manifest(manifest, number)
        found: dict[str, Any] = manifest
        return found

    def _read(self, name: str, digest: str) -> bytes:
        blob = self.files.read(name)
        if hash_blob(blob) != digest:
            found, said = hash_blob(blob)[:12], digest[:12]
            raise StorageError(f"{name} has sha256 {found}, its manifest says {said}")
        return blob


def refuse_bad_uri(uri: str) -> None:
    """A StorageError for a URI that checkpoints could not be written to, whatever lies there."""
    with _refuse_place(uri):
        check_uri(uri)


@contextmanager
def _refuse_place(uri: str) -> Iterator[None]:
    """What is wrong with a place is said in a sentence."""
    try:
        yield
    except (OSError, ValueError) as error:
        rule = "checkpoints need a writable place"
        got = f"{mask_secrets(uri)} ({describe_error(error, uri)})"
        remedy = "Set checkpoint.uri."
        if "@" in uri:
            remedy += " What it has of user and password is percent-encoded."
        # The error itself may name credentials, and travels between processes with its cause.
        raise StorageError(broken(rule, got, remedy)) from None


# -- manifests -------------------------------------------------------------------------------------


def manifest_name(number: int) -> str:
    return f"round-{number:06d}.json"


def state_name(number: int) -> str:
    return f"round-{number:06d}.state"


def entry_stem(client: int, key: str) -> str:
    """How the names of the files of one entry begin; the round in which it changed comes after."""
    return f"clients/{client}.{quote(key, safe='')}."


def entry_names(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The files of clients' states that a manifest names."""
    for entries in manifest["clients"].values():
        for name, _ in entries.values():
            yield name


def seal_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with a hash of all else that is in it."""
    content = {name: manifest[name] for name in manifest if name != "sha256"}
    return {**content, "sha256": hash_blob(json.dumps(content, sort_keys=True).encode())}


def check_manifest(manifest: Any, number: int) -> None:
    """Refuse a manifest that is damaged, or that does not lie where it belongs.

    An older one has no hash; what else there is must agree all the more."""
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, UNSEALED):
        rule = f"a manifest of format {FORMAT} is expected"
        raise StorageError(broken(rule, "something else"))
    sealed = manifest["format"] == FORMAT
    if set(manifest) != (FIELDS | {"sha256"} if sealed else FIELDS):
        raise StorageError(broken("a manifest has certain fields", sorted(map(str, manifest))))
    if sealed and manifest != seal_manifest(manifest):
        raise StorageError("the manifest has not the sha256 that it says it has: it is damaged")
    if type(manifest["round"]) is not int or manifest["round"] != number:
        raise StorageError(broken(f"the manifest of round {number} says so", manifest["round"]))
    if manifest["state"][0] != state_name(number):
        rule = f"the state of round {number} is {state_name(number)}"
        raise StorageError(broken(rule, manifest["state"][0]))
    for client, entries in manifest["clients"].items():
        for key, (name, _) in entries.items():
            _check_entry_name(client, key, name, number)


def _check_entry_name(client: str, key: str, name: str, number: int) -> None:
    stem = entry_stem(int(client), key)
    written = name.removeprefix(stem)
    if str(int(client)) != client or stem + written != name or not written.isdecimal():
        rule = f"the entry '{key}' of client {client} lies in {stem}<round>"
        raise StorageError(broken(rule, name))
    if int(written) > number:
        raise StorageError(broken(f"an entry of round {number} was written by then", name))


def hash_blob(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
