"""Garbage: snapshots that nobody keeps, and layers that nothing needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from branchkit.errors import UsageError
from branchkit.workspace.catalog import Catalog, Named
from branchkit.workspace.space import taken_bytes
from branchkit.workspace.store import Store


class Freed(NamedTuple):
    """What a collection gave back."""

    bytes: int
    layers: int


def needed(catalog: Catalog, keep: Collection[str] | None, branches: Iterable[Named]) -> set[str]:
    """The snapshots that ``keep`` or ``branches`` need, with all that these stand on.

    None keeps all. A snapshot needs those before it: its layer holds only what changed since.
    """
    if keep is None:
        return set(catalog.snapshots)
    if unknown := sorted(set(keep) - catalog.snapshots.keys()):
        raise UsageError(f"no snapshot {unknown[0]}", hint="keep snapshots that the store has")
    waiting: list[str | None] = list(keep)
    for named in branches:
        waiting += [named.origin, named.current]
    found: set[str] = set()
    while waiting:
        at = waiting.pop()
        if at is not None and at not in found:
            found.add(at)
            waiting.append(catalog.snapshots[at].snapshot.parent)
    return found


def collect(store: Store, keep: Collection[str] | None) -> Freed:
    """Forget every snapshot that is not `needed` and remove every layer that none needs.

    Durable before anything is removed: a power loss leaves a layer too many, never one too few.
    """
    catalog = store.catalog
    branches = [*catalog.named.values(), *store.still_open()]
    lost = catalog.snapshots.keys() - needed(catalog, keep, branches)
    layers = {catalog.snapshots[each].layer for each in lost} - {""}
    if lost:
        catalog.record({"kind": "forget", "ids": sorted(lost)}, durable=True, frees=True)
        store.forget(lost)
    layers = (layers | store.strays()) - catalog.layers() - {each.layer for each in branches}
    total = 0
    for layer in layers:
        total += taken_bytes(store.layers / layer) + taken_bytes(store.layers / f"{layer}.log")
        store.discard(layer)
    return Freed(total, len(layers))
