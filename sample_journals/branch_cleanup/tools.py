"""The tools of the clean-up agent. They travel in the journal and run in its sandbox."""

import subprocess

from branchkit.harness.tools import ToolRefused, tool


def git(*arguments: str) -> str:
    """What git prints; its complaint becomes the model's observation."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ToolRefused(done.stderr.strip() or f"git exited with {done.returncode}")
    return done.stdout


def is_protected(name: str) -> bool:
    """Whether the repository's configuration protects the branch."""
    done = subprocess.run(
        ["git", "config", "--bool", f"branch.{name}.protected"], capture_output=True, text=True
    )
    return done.stdout.strip() == "true"


@tool(effect="pure")
def list_branches(prefix: str = "") -> str:
    """List branches, the oldest first, then those that are protected.

    prefix: only branches whose name begins with this
    """
    merged = set(git("branch", "--merged", "main", "--format=%(refname:short)").split())
    rows = git(
        "for-each-ref", "--sort=committerdate", "refs/heads",
        "--format=%(refname:short) %(committerdate:short)",
    ).splitlines()  # fmt: skip
    lines, protected = [], []
    for row in rows:
        name, date = row.split()
        if not name.startswith(prefix):
            continue
        state = "-" if name == "main" else "merged" if name in merged else "not merged"
        lines.append(f"{name:<34} {date} {state}")
        if is_protected(name):
            protected.append(f"{name:<34} protected by the release policy")
    return "\n".join([*lines, *protected]) or f"no branch begins with {prefix!r}"


@tool(effect="pure")
def show_branch(name: str) -> str:
    """Show one branch: its last commit, whether it is merged, whether it is protected."""
    merged = name in git("branch", "--merged", "main", "--format=%(refname:short)").split()
    commit = git("log", "-1", "--format=%h %cs %s", f"refs/heads/{name}", "--").strip()
    return (
        f"name: {name}\nlast commit: {commit}\nmerged: {'yes' if merged else 'no'}\n"
        f"protected: {'yes' if is_protected(name) else 'no'}"
    )


@tool(effect="workspace")
def delete_branch(name: str) -> str:
    """Delete a branch."""
    git("branch", "-D", "--", name)
    return f"deleted {name}"
