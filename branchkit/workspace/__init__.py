"""Copy-on-write workspaces: branches of a directory that are made, frozen and forked in O(1).

FUSE serves them where it can (``fuse``, in a daemon of its own), copies where it cannot; ids,
hashes, snapshots and the portable form are the same.
"""

from branchkit.workspace.catalog import Snapshot
from branchkit.workspace.collect import Freed
from branchkit.workspace.compare import Change

# Before portable's `export` gets its name: loaded later, the module of that name would take its
# place in this package.
from branchkit.workspace.export import Exported
from branchkit.workspace.hashes import VOLATILE
from branchkit.workspace.mount import Branch, Workspaces
from branchkit.workspace.portable import adopt, export
from branchkit.workspace.probe import Probe, probe
from branchkit.workspace.scan import tree_hash

__all__ = [
    "VOLATILE",
    "Branch",
    "Change",
    "Exported",
    "Freed",
    "Probe",
    "Snapshot",
    "Workspaces",
    "adopt",
    "export",
    "probe",
    "tree_hash",
]
