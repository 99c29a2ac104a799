"""Models behind one interface, and the spec that names each of them.

``openai:NAME[@URL]``   chat completions at any base URL; the key stays unrecorded
``rulebook:NAME``       a deterministic stand-in that follows written rules (see ``rulebook``)
``local:smollm2``       a real sampled model on this machine, constrained by a grammar
"""

from __future__ import annotations

from branchkit.boundary.model import Model as Model
from branchkit.boundary.model import ModelReply as ModelReply
from branchkit.boundary.model import ModelRequest as ModelRequest
from branchkit.errors import UsageError

FORMS = "openai:NAME[@URL], local:smollm2 or rulebook:NAME"


def open_model(spec: str, content: str | None = None, *, url: str | None = None) -> Model:
    """The model that ``spec`` names; ``content`` is the text of a rulebook.

    ``url`` is a server that already runs for a local model, so that branches can share one.

    Raises UsageError for a spec of no known form, DependencyMissing without the extra it needs.
    """
    provider, _, name = spec.partition(":")
    if provider == "openai" and name:
        from branchkit.harness.openai_model import OpenAIModel

        return OpenAIModel(spec)
    if provider == "rulebook" and name:
        from branchkit.harness.rulebook import Rulebook

        if content is None:
            raise UsageError(
                f"rulebook {name!r} is not part of this run",
                hint="name its file: --swap model=rulebook:@FILE.toml",
            )
        return Rulebook(spec, content)
    if spec == "local:smollm2":
        from branchkit.harness.local_model import LocalModel

        return LocalModel(url=url)
    raise UsageError(f"{spec!r} names no model", hint=f"write {FORMS}")
