"""A small agent whose every part can be told to misbehave, so that the true cause is known.

The agent is honest about what feeds what: a context is made of all that came before, a reply of the
context, an action of the reply, a result of the action and the workspace. A plant changes exactly
one part from one turn on (or at one turn), and nothing else is touched.
"""

from dataclasses import dataclass
from hashlib import sha256

from branchkit.divergence.align import TurnHashes, Vector

TURNS = 16
START = 4  # fork(3): turns 1..3 are replayed, turn 4 is the first live one


@dataclass(frozen=True)
class Plant:
    """What misbehaves, from which turn, and for one turn only or for all from there on.

    ``part``: reply (another choice), wording (the same choice in other words), parse, observation,
    hidden (the workspace changes unseen), context, end.
    """

    part: str
    turn: int
    once: bool = True
    model: str = "m-1"

    def at(self, part: str, turn: int) -> bool:
        return self.part == part and (turn == self.turn or (turn > self.turn and not self.once))


QUIET = Plant("nothing", 0)


def digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:12]


def run(plant: Plant, *, seed: int, replies: bool = True, turns: int = TURNS) -> Vector:
    """All turns of one run of the agent; the first START-1 are the same whatever is planted."""
    context, workspace = digest("task", seed), digest("base")
    rows = []
    for turn in range(1, turns + 1):
        if plant.at("end", turn):
            break
        if plant.at("context", turn):
            context = digest(context, "assembled otherwise")
        choice = int(digest(context), 16) % 3 + 10 * plant.at("reply", turn)
        said = digest(context, choice, plant.at("wording", turn))
        action = digest(choice, plant.at("parse", turn))
        workspace = digest(workspace, action, plant.at("hidden", turn))
        # What an action shows depends on the workspace only every third turn, so that a hidden
        # change stays hidden for a while.
        seen = workspace if turn % 3 == 0 else ""
        result = digest(action, seen, plant.at("observation", turn))
        model = plant.model if turn >= plant.turn else "m-1"
        rows.append(
            TurnHashes(turn, context, action, result, workspace, model, said if replies else None)
        )
        context = digest(context, said, action, result)
    return tuple(rows)


def live(plant: Plant, seed: int, *, replies: bool = True, turns: int = TURNS) -> Vector:
    return run(plant, seed=seed, replies=replies, turns=turns)[START - 1 :]
