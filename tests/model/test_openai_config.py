"""What a study may say of a served model; keys are refused where they do not belong, and never shown."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import OpenAIModel, Study, identity, validate
from harness.errors import ConfigError
from harness.model.keys import HIDDEN, SHORTEST, Key, read_key
from harness.model.suspect import key_in_fields

SECRET = "sk-abcdef0123456789"


def study(**model: Any) -> Study:
    served = {"client": "openai", "base_url": "http://127.0.0.1:8000/v1", "model": "m", **model}
    content = {
        "name": "s",
        "seed": 1,
        "models": {"a": served},
        "directions": {"up": {"base": "a", "swap": "a"}},
        "forks": {"rule": "paper_fraction", "at": [0.3]},
    }
    return validate(content, "study.yaml")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"base_url": f"http://me:{SECRET}@127.0.0.1/v1"}, "`base_url` holds a user name or key before @"),
        ({"base_url": f"http://{SECRET}@127.0.0.1/v1"}, "before @"),
        ({"base_url": f"http://127.0.0.1/v1?api_key={SECRET}"}, "`base_url` holds a query"),
        ({"base_url": f"http://127.0.0.1/{SECRET}"}, "`base_url` holds a key"),
        ({"base_url": f"{SECRET}"}, "must start with http"),
        ({"base_url": f"ftp://{SECRET}"}, "must start with http"),
        ({"api_key_env": SECRET}, "`api_key_env` is no name of an environment variable"),
        ({"api_key_env": "KEY", "api_key_file": "key"}, "both set"),
        ({"extra_body": {"api_key": SECRET}}, "`extra_body.api_key` looks like a key"),
        ({"extra_body": {"headers": {"Authorization": SECRET}}}, "`extra_body.headers.Authorization` looks like a key"),
        ({"extra_body": {"accessToken": "x"}}, "`extra_body.accessToken` looks like a key"),
        ({"extra_body": {"user": f"Bearer {SECRET}"}}, "`extra_body.user` looks like a key"),
        ({"chat_template_kwargs": {"list": [{"secret": SECRET}]}}, "`chat_template_kwargs.list.secret` looks like"),
        ({"extra_body": {"temperature": 1}}, "`extra_body.temperature` is not for `extra_body`"),
        ({"extra_body": {"stream": True}}, "`extra_body.stream` is not for `extra_body`"),
        ({"extra_body": {"x": float("nan")}}, "something that JSON cannot"),
        ({"omit": ["model"]}, "models.a.omit"),
        ({"concurrency": 0}, "models.a.concurrency"),
        ({"api_key": SECRET}, "unknown key `models.a.api_key`"),
    ],
)
def test_a_model_that_cannot_be_is_one_line_that_shows_no_key(model: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(**model)
    told = str(caught.value)
    assert says in told and SECRET not in told and "\n" not in told


def test_fields_that_only_sound_like_keys_pass() -> None:
    fields = {
        "min_tokens": 1,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "top_k": 20,
        "eos_token": "</s>",
        "structured_outputs": {"regex": "a*"},
        "tokenizer_mode": "auto",
    }
    made = study(extra_body=fields, chat_template_kwargs={"enable_thinking": False}).models["a"]
    assert isinstance(made, OpenAIModel) and made.extra_body == fields


@given(st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner)))
def test_what_holds_no_key_is_not_suspected(value: Any) -> None:
    assert key_in_fields(value) is None


def test_what_only_says_when_work_is_done_makes_no_other_study() -> None:
    plain = identity(study())
    other = study(concurrency=4, family="f", attempts=2, longest_wait_seconds=9, api_key_file="elsewhere")
    assert identity(other) == plain
    assert identity(study(omit=["seed"])) != plain and identity(study(roles="alternate")) != plain
    assert identity(study(extra_body={"concurrency": 4})) != plain


# --- keys

secrets = st.text("abcXYZ0189-_/+=.%", min_size=SHORTEST, max_size=20)
texts = st.text("abcXYZ0189-_/+= ", max_size=20)


@settings(derandomize=True, deadline=None)
@given(secrets, texts, texts)
def test_no_text_and_no_field_keeps_the_key(secret: str, before: str, after: str) -> None:
    key = Key(secret)
    held = {before + secret + after: [before, {"x": secret, "n": 1}], "plain": before + secret}
    clean = key.hide_in(held)
    assert secret not in json.dumps(clean, ensure_ascii=False).replace(HIDDEN, "")
    assert clean["plain"].count(HIDDEN) >= 1
    assert secret not in repr(key) and secret in key.headers()["Authorization"]


@settings(derandomize=True, deadline=None)
@given(st.recursive(st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_what_holds_no_key_comes_back_as_the_same_object(value: Any) -> None:
    assert Key("§" * SHORTEST).hide_in(value) is value
    assert Key().hide_in(value) is value


@pytest.mark.parametrize("form", ["sk-a/b+c=d0", "sk-a%2Fb%2Bc%3Dd0", "sk-a\\/b+c=d0"])
def test_the_key_is_hidden_in_every_form_that_a_server_writes(form: str) -> None:
    assert Key("sk-a/b+c=d0").hide(f"no such key: {form}.") == f"no such key: {HIDDEN}."


def test_a_placeholder_is_sent_and_not_hidden() -> None:
    assert Key("EMPTY").headers() == {"Authorization": "Bearer EMPTY"}
    assert Key("EMPTY").hide("The list is EMPTY.") == "The list is EMPTY."


def test_keys_are_read_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", SECRET)
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    for key, note in (read_key("A_KEY", None, "models.a"), read_key(None, str(path), "models.a")):
        assert (key.headers()["Authorization"], note) == (f"Bearer {SECRET}", None)
    path.chmod(0o640)
    _, note = read_key(None, str(path), "models.a")
    assert note is not None and "chmod 600" in note
    assert read_key(None, None, "models.a")[0].headers() == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b" \n", "is empty"), (f"{SECRET} {SECRET}".encode(), "one key"), (b"\xff", "not a text file")],
)
def test_a_file_that_holds_no_key_is_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_key(None, str(path), "models.a")
    assert says in str(caught.value) and SECRET not in str(caught.value)


def test_a_missing_key_is_named_by_its_place() -> None:
    assert "NOT_SET_AT_ALL" not in os.environ
    with pytest.raises(ConfigError, match="NOT_SET_AT_ALL is not set"):
        read_key("NOT_SET_AT_ALL", None, "models.a")
    with pytest.raises(ConfigError, match=r"that `models.a.api_key_env` names is not set"):
        read_key("gsk_in_the_wrong_place", None, "models.a")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_key(None, "/nowhere/at/all", "models.a")
