"""Secrets are taken out before the first write (R11, M08, M09)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.errors import UsageError
from branchkit.journal.redact import Redactor, Rules, redactor, secrets_of

OPENAI = "sk-" + "a1B2" * 8
GITHUB = "ghp_" + "Z9y8" * 9
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"

SECRETS = {
    f"export OPENAI_API_KEY={OPENAI}": OPENAI,
    f"git clone https://x:{GITHUB}@host/r": GITHUB,
    "postgres://admin:hunter22@db/prod": "hunter22",
    f"token {JWT} ok": JWT,
    f"cat id_rsa\n{KEY}\n$": "MIIEow",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz and cut": "b3BlbnNz",
    "curl -H 'Authorization: Basic dXNlcjpwdw=='": "dXNlcjpwdw",
    "Cookie: session=abc; csrf=def\r\nHost: a": "session=abc; csrf=def",
    "X-API-Key: k-1234": "k-1234",
    "Authorization: Bearer abc.def-ghi_jkl": "abc.def-ghi",
    json.dumps({"user": "u", "password": 'p"zq9\\r'}): "zq9",
    json.dumps({"args": json.dumps({"access_token": 'tok"zen\\'})}): "zen",
    '{"Refresh_Token" : "r-1"}': "r-1",
}


@pytest.mark.parametrize("text", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_leaves_a_marker(text: str) -> None:
    """Whatever says that it is one: its name, its shape; what is around it stays."""
    clean = Redactor().text(text)
    assert SECRETS[text] not in clean
    assert "[redacted:" in clean


def test_json_in_text_stays_json() -> None:
    """What is read out of a redacted text later is still readable: quotes and braces stand."""
    inner = json.dumps({"access_token": 'a"b\\c', "rest": [1, "x"]})
    clean = json.loads(Redactor().text(json.dumps({"arguments": inner, "password": "p"})))
    assert clean["password"] == "[redacted:password]"
    assert json.loads(clean["arguments"]) == {
        "access_token": "[redacted:access_token]", "rest": [1, "x"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "the token bucket algorithm", "password reset page", "sk-learn", "skip-this-one",
        "Cookie: ", "authorization: [redacted:authorization]", "https://host/path:with@sign",
        "eyJ is how it starts", "hf_space", '{"password": ""}', "git@github.com:owner/repo",
    ],
)  # fmt: skip
def test_innocent_words_stay(text: str) -> None:
    """A redactor that eats ordinary text makes journals useless."""
    assert Redactor().text(text) == text


fragments = st.sampled_from(
    [*SECRETS, '"', "\\", "\n", "Cookie: ", '"password": "', "[redacted:x]"]
)
texts = st.lists(st.one_of(fragments, st.text(max_size=8)), max_size=6).map("".join)


@given(texts)
def test_twice_is_once(text: str) -> None:
    """Replay redacts again what it reads from the journal: nothing may move."""
    clean = Redactor(values={"A_TOKEN": "hunter2hunter2"}).text(text)
    assert Redactor(values={"A_TOKEN": "hunter2hunter2"}).text(clean) == clean


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "Password", "cookie", "x-api-key"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_a_json_value_keeps_its_shape(value: object) -> None:
    """Lists stay as long, dicts keep their keys, and twice is once."""

    def shape(one: object) -> object:
        if isinstance(one, dict):
            return {key: shape(each) for key, each in one.items()}
        return [shape(each) for each in one] if isinstance(one, list) else type(one)

    clean = Redactor().value(value)
    assert shape(clean) == shape(value)
    assert Redactor().value(clean) == clean


def test_what_needs_nothing_is_given_back_itself() -> None:
    """Hashing and identity checks behind it cost nothing more."""
    value = {"a": ["b", {"c": 1}], "password": ""}
    assert Redactor().value(value) is value


def test_secrets_of_the_environment_are_known_by_value() -> None:
    """Whatever their shape; paths, numbers and short words are no secrets."""
    found = secrets_of({
        "MY_TOKEN": "correct horse battery", "SSH_KEY": "/home/me/.ssh/id", "KEY_BITS": "20482048",
        "DB_PASSWORD": "short", "HOME": "/home/me", "APP_SECRET": "horse battery",
    })  # fmt: skip
    assert set(found) == {"MY_TOKEN", "APP_SECRET"}
    clean = Redactor(values=found).text("a correct horse battery and a horse battery")
    assert clean == "a [redacted:MY_TOKEN] and a [redacted:APP_SECRET]"


def test_headers_are_dropped_and_bodies_cut() -> None:
    """M08: authorization, cookies and keys go; a body of one byte over the limit loses it."""
    clean = Redactor()
    kept = clean.headers([("Cookie", "a"), ("X-API-KEY", "b"), ("Accept", "*/*")])
    assert kept == [("Accept", "*/*")]
    assert len(clean.body(b"x" * 262_144)) == len(clean.body(b"x" * 262_145)) == 262_144
    assert clean.body(b'{"password":"p"}\xff') == b'{"password":"[redacted:password]"}\xff'


SETTINGS = """
[capture]
request_fields = ["method", "path", "query", "body"]
response_fields = ["status", "body"]
max_body_bytes = 1000

[redaction]
drop_headers = ["authorization", "cookie", "set-cookie", "x-api-key", "x-mine"]
replace_json_paths = ["$.access_token", "$.refresh_token", "$.password", "$.pin"]
"""


def test_the_settings_file_is_taken_verbatim(tmp_path: Path) -> None:
    """M09: every setting of the founding document, by its name."""
    path = tmp_path / "redaction.toml"
    path.write_text(SETTINGS)
    found = redactor({"BRANCHKIT_REDACTION": str(path)})
    assert found.rules.max_body_bytes == 1000
    assert found.rules.drop_headers[-1] == "x-mine"
    assert found.value({"pin": "1234"}) == {"pin": "[redacted:pin]"}
    assert Rules().drop_headers == ("authorization", "cookie", "set-cookie", "x-api-key")


@pytest.mark.parametrize(("text", "said"), [("[x", "x"), ("[redaction]\nfoo = 1", "'foo'")])
def test_a_settings_file_that_says_nothing_known_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    """A typo would leave a secret in place without a word."""
    path = tmp_path / "redaction.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        redactor({"BRANCHKIT_REDACTION": str(path)})


@given(st.recursive(st.text() | st.sampled_from([*SECRETS, "pass", "ſk-", "\u212a"]) | st.none(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_a_look_at_the_whole_finds_what_a_look_at_each_part_finds(value: object) -> None:
    """The quick look at one JSON text of a value never calls one clean that is not."""
    one = Redactor(values={"A_KEY": 'quo"ted\\secret', "B_KEY": "Straße-secret"})
    assert one.value(value) == one._value(value)


@pytest.mark.parametrize("secret", ['quo"ted\\secret', "Straße-secret", "line\nof\ttwo parts"])
def test_a_value_that_json_escapes_is_found(secret: str) -> None:
    one = Redactor(values={"A_KEY": secret})
    assert one.value({"a": [f"x{secret}y"]}) == {"a": ["x[redacted:A_KEY]y"]}
