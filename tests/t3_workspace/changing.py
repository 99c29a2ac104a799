"""Random changes of a live branch, one at a time."""

from __future__ import annotations

import contextlib

from hypothesis import strategies as st

from branchkit.workspace import edit, graft
from branchkit.workspace.branch import Live

PLACES = ["", "d", "d/e", "d/e/f", "other"]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "write",
                "chmod",
                "mkdir",
                "remove",
                "rename",
                "link",
                "xattr",
                "patch",
                "cut",
                "freeze",
                "fork",
            ]
        ),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=30,
)


def changed(live: Live, what: str, number: int) -> None:
    """One change of a few names in a few places; those that cannot be are left out."""
    tree, names = live.tree, [b"HEAD", b"objects", b"refs", b"index", b"a.pyc", b"x", b"y"]
    one, two = PLACES[number % 5], PLACES[number // 5 % 5]
    name, other = names[number // 25 % 7], names[number // 175 % 7]
    with contextlib.suppress(OSError):
        place, to = graft.find(live, one), graft.find(live, two)
        match what:
            case "mkdir":
                live.commit(edit.make(tree, place, name, 0o40755, (0, 0), 1).changes)
            case "write":
                if name not in tree.entries(place):
                    live.commit(edit.make(tree, place, name, 0o100644, (0, 0), 1).changes)
                live.write(edit.child(tree, place, name), 0, b"%d" % number, 1)
            case "patch":  # of something big: the layer holds this part of it only
                fid = graft.find(live, "y")
                live.write(fid, number * 7 % (1 << 21), b"%d" % number * 20_000, 1)
            case "cut":
                live.resize(graft.find(live, "y"), number * 13 % (1 << 22), 1)
            case "chmod":
                mode = 0o700 + number % 8
                live.commit(edit.meta(tree, edit.child(tree, place, name), 1, mode=mode))
            case "xattr":
                fid = edit.child(tree, place, name)
                live.commit(edit.set_xattr(tree, fid, b"user.n", b"%d" % number, 1))
            case "link":
                live.commit(edit.link(tree, edit.child(tree, place, name), to, other, 1))
            case "rename":
                if to != edit.child(tree, place, name):
                    live.commit(edit.rename(tree, place, name, to, other, 1).changes)
            case "remove":
                gone = edit.unlink(tree, place, name, 1)
                live.commit(gone.changes)
                live.forget(gone.fid)
