"""Secrets out of texts and JSON before anything is written (R11, M08, M09).

Three ways to know one: its *name* (a header, a JSON field, a URL's password), its *shape* (a key of
a known provider, a private key, a JWT), and its *value* (what the environment says is a key). What
takes its place, ``[redacted:NAME]``, has the same form everywhere, so a reader sees that something
was here and which rule took it.

``redacted(redacted(x)) == redacted(x)``: replay redacts again what it reads from the journal.
``VERSION`` stands in every TaskStarted: other rules would give other context hashes, so a change
of the rules is a new version beside the old one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from branchkit.errors import UsageError
from branchkit.journal.payloads import Payload
from branchkit.journal.shapes import shape

P = TypeVar("P", bound=Payload)
S = TypeVar("S", bound=msgspec.Struct)

VERSION = "1"
MAX_BODY_BYTES = 262_144
LEAST_CHARACTERS = 8  # a shorter value from the environment would take innocent words with it


class Rules(NamedTuple):
    """Names whose values never reach a disk; all compared without case."""

    drop_headers: tuple[str, ...] = ("authorization", "cookie", "set-cookie", "x-api-key")
    # "$.password" means a field of that name at any depth: a token is no safer two levels down.
    replace_json_paths: tuple[str, ...] = ("$.access_token", "$.refresh_token", "$.password")
    max_body_bytes: int = MAX_BODY_BYTES
    request_fields: tuple[str, ...] = ("method", "path", "query", "body")
    response_fields: tuple[str, ...] = ("status", "body")

    def fields(self) -> tuple[str, ...]:
        """The names of the JSON fields that are replaced."""
        return tuple(path.rpartition(".")[2] for path in self.replace_json_paths)


class _Rule(NamedTuple):
    """A pattern and what must stand in a text (in lower case) for it to be worth a search."""

    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    marker: str  # with \1 for what is kept in front of the secret


def _shape(name: str, needles: str, pattern: str) -> _Rule:
    return _Rule(tuple(needles.split()), re.compile(pattern, re.DOTALL), f"[redacted:{name}]")


_SHAPES = (
    _shape(
        "private-key",
        "-----begin",
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    ),
    _shape("api-key", "sk- rk-", r"\b[sr]k-[A-Za-z0-9_-]{20,}"),
    _shape("api-key", "akia", r"\bAKIA[0-9A-Z]{16}\b"),
    _shape("api-key", "aiza", r"\bAIza[0-9A-Za-z_-]{35}"),
    _shape("api-key", "hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    _shape("token", "ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{30,}"),
    _shape("token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{22,}"),
    _shape("token", "glpat- npm_ pypi-", r"\b(?:glpat-|npm_|pypi-)[A-Za-z0-9_-]{20,}"),
    _shape("token", "xox", r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    _shape("token", "eyj", r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _shape("bearer", "bearer ", r"\b(?i:Bearer )[A-Za-z0-9._~+/=-]{12,}"),
    _shape("url-password", "://", r"(?<=://)[^\s/:@\[\]]+:[^\s/@\[\]]+(?=@)"),
)


def _header(name: str) -> _Rule:
    """A header in a text: `Cookie: a=b; c=d` to the end of the line, or of the quoted string."""
    quote = r"(?:\\?[\"'])?"
    head = rf"(?i:(?<![\w-]){re.escape(name)}){quote}\s*:\s*{quote}"
    pattern = re.compile(rf"({head})(?![\s\"'\\\[])[^\r\n\"'\\]+")
    return _Rule((name.lower(),), pattern, rf"\1[redacted:{name.lower()}]")


def _fields(name: str) -> Iterable[_Rule]:
    """A field in JSON text, and in JSON text within a JSON string, where quotes are escaped."""
    start = r"(?!\[redacted:)"
    for quote, inside in (
        (r"\"", r"(?:[^\"\\]|\\.)+"),
        (r"\\\"", r"(?:[^\"\\]|\\\\(?:\\[\"\\]|[^\"\\]))+"),
    ):
        head = rf"(?i:{quote}{re.escape(name)}{quote}\s*:\s*{quote})"
        pattern = re.compile(rf"({head}){start}{inside}", re.DOTALL)
        yield _Rule((name.lower(),), pattern, rf"\1[redacted:{name.lower()}]")


class Redactor:
    """Texts and JSON values without secrets."""

    def __init__(self, rules: Rules | None = None, values: Mapping[str, str] | None = None) -> None:
        """``values`` are secrets by name (of an environment variable): see `secrets_of`."""
        self.rules = rules or Rules()
        names = (*self.rules.drop_headers, *self.rules.fields())
        self._names = {name.lower() for name in names}
        known = {v: k for k, v in (values or {}).items() if len(v) >= LEAST_CHARACTERS}
        # A secret that holds another one is found as itself.
        self._values = sorted(known.items(), key=lambda pair: (-len(pair[0]), pair[0]))
        self._rules = [
            *_SHAPES,
            *(_header(name) for name in self.rules.drop_headers),
            *(rule for name in self.rules.fields() for rule in _fields(name)),
        ]
        needles = {needle for rule in self._rules for needle in rule.needles}
        self._needles = _shortest(needles)
        self._words = _shortest(
            needles | self._names | {_in_json(value) for value, _ in self._values}
        )
        self._last = ""  # what ``text`` gave last: it would give the same again

    def _is_clean(self, value: Any) -> bool:
        """Whether no rule can apply to ``value``. Where it cannot tell, it says no.

        Most events hold no secret. Looking for the rules' words in one JSON text of all of it is
        twenty times cheaper than looking at each text in it (tests/benchmarks/journal.py).
        """
        try:
            raw = msgspec.json.encode(value)
        except (TypeError, ValueError):  # half a character, or what is no JSON
            return False
        # Words are found in a text in a fifth of the time that they take in bytes.
        return not _holds(raw.decode().lower(), self._words)

    def text(self, text: str) -> str:
        """``text`` with a marker in the place of each secret."""
        self._last = self._text(text)
        return self._last

    def _text(self, text: str) -> str:
        for value, name in self._values:
            if value in text:
                text = text.replace(value, f"[redacted:{name}]")
        low = text.lower()
        if not _holds(low, self._needles):
            return text
        for rule in self._rules:
            # Most texts hold no secret: a search for a word is a hundred times cheaper.
            if any(needle in low for needle in rule.needles):
                text = rule.pattern.sub(rule.marker, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it redacted, and every field that is named in the rules.

        The value itself is given back where there was nothing to do.
        """
        return value if self._is_clean(value) else self._value(value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            fresh_list = [self._value(each) for each in value]
            return fresh_list if any(a is not b for a, b in _pairs(fresh_list, value)) else value
        if isinstance(value, dict):
            fresh = {name: self._field(name, each) for name, each in value.items()}
            return fresh if any(fresh[name] is not value[name] for name in value) else value
        return self._payload(value) if isinstance(value, msgspec.Struct) else value

    def payload(self, payload: P) -> P:
        """A payload redacted field by field; itself where nothing is to do."""
        told = [getattr(payload, name) for name in shape(type(payload)).told]
        if self._last in told:  # the text of a result, which was redacted when it came
            told.remove(self._last)
        return payload if not told or self._is_clean(told) else self._payload(payload)

    def _payload(self, payload: S) -> S:
        fresh = {}
        for name in payload.__struct_fields__:
            old = getattr(payload, name)
            if (new := self._value(old)) is not old:
                fresh[name] = new
        return msgspec.structs.replace(payload, **fresh) if fresh else payload

    def _field(self, name: str, value: Any) -> Any:
        if name.lower() in self._names and isinstance(value, str) and value:
            marker = f"[redacted:{name.lower()}]"
            return value if value == marker else marker
        return self._value(value)

    def body(self, data: bytes) -> bytes:
        """At most ``max_body_bytes`` of a request's or reply's body, redacted."""
        cut = data[: self.rules.max_body_bytes]
        return self.text(cut.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """``headers`` without those that are dropped, the others redacted."""
        dropped = {name.lower() for name in self.rules.drop_headers}
        return [(name, self.text(text)) for name, text in headers if name.lower() not in dropped]


def nothing() -> Redactor:
    """A redactor that leaves everything as it is: for journals from before there were rules."""
    return _Nothing()


def holds_marker(value: Any) -> bool:
    """Whether something in a JSON value was redacted."""
    if isinstance(value, str):
        return "[redacted:" in value
    if isinstance(value, dict):
        return any(map(holds_marker, value.values()))
    return isinstance(value, list) and any(map(holds_marker, value))


def redactor(environment: Mapping[str, str]) -> Redactor:
    """The redactor that ``environment`` asks for: its secrets, and the rules of its settings file.

    ``BRANCHKIT_REDACTION`` names a TOML file with the tables ``capture`` and ``redaction``; what it
    does not set is as in `Rules`. Raises UsageError for a file that cannot be used.
    """
    path = environment.get("BRANCHKIT_REDACTION")
    return Redactor(_rules(Path(path)) if path else None, secrets_of(environment))


def _rules(path: Path) -> Rules:
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"BRANCHKIT_REDACTION={path}: {error}", hint="name a TOML file that can be read"
        ) from error
    settings = {**tables.pop("capture", {}), **tables.pop("redaction", {})}
    unknown = [*tables, *(settings.keys() - set(Rules._fields))]
    if unknown:
        raise UsageError(
            f"{path}: {unknown[0]!r} is no setting", hint=f"settings: {', '.join(Rules._fields)}"
        )
    try:
        return msgspec.convert(list({**Rules()._asdict(), **settings}.values()), Rules)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", hint="see docs/redaction.md") from None


class _Nothing(Redactor):
    def text(self, text: str) -> str:
        return text

    def value(self, value: Any) -> Any:
        return value

    def payload(self, payload: P) -> P:
        return payload


_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environment`` that are secrets by their name: ``OPENAI_API_KEY`` and such.

    Paths and numbers are none: ``SSH_KEY=/home/me/.ssh/id`` names a file.
    """
    return {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name)
        and len(value) >= LEAST_CHARACTERS
        and not value.isdigit()
        and not value.startswith(("/", "./", "~"))
    }


def _shortest(words: set[str]) -> list[str]:
    """The words without those that hold another one, which is found with them."""
    return sorted(w for w in words if not any(o in w for o in words if o != w))


def _holds(text: str, words: list[str]) -> bool:
    for word in words:  # noqa: SIM110 as a plain loop half of what it takes as an expression
        if word in text:
            return True
    return False


def _in_json(value: str) -> str:
    """``value`` as it stands in a JSON text, in lower case."""
    return msgspec.json.encode(value).decode()[1:-1].lower()


def _pairs(one: list[Any], two: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(one, two, strict=True)
