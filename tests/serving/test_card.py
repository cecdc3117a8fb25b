"""A card is read whole or refused by name, and becomes exactly the command that it says."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.serving.card import check_together, is_secret, known_cards, load_card
from harness.serving.command import command_of
from tests.serving.parts import card_file, made_card, vllm_card

CACHE = Path("/cache")


def arguments(name: str) -> dict[str, str | None]:
    """The command of a card that ships: flag -> value, None for a bare one."""
    argv = command_of(load_card(name), cache=CACHE, python="python").argv
    found: dict[str, str | None] = {}
    for here, following in zip(argv[3:], [*argv[4:], "--"], strict=True):
        if here.startswith("--"):
            found[here.removeprefix("--")] = None if following.startswith("--") else following
    return found


# --- the cards that ship


def test_the_papers_cards_are_its_flags_and_nothing_else() -> None:
    common = {
        "host": "127.0.0.1",
        "max-model-len": "28672",
        "kv-cache-dtype": "fp8",
        "max-num-seqs": "8",
        "enable-auto-tool-choice": None,
        "tool-call-parser": "hermes",
        "enforce-eager": None,
    }
    small = {"model": "Qwen/Qwen3-4B-Instruct-2507-FP8", "gpu-memory-utilization": "0.36", "port": "8001"}
    large = {"model": "Qwen/Qwen3-14B-AWQ", "gpu-memory-utilization": "0.54", "port": "8002"}
    assert arguments("qwen3-4b-2507-fp8") == common | small
    assert arguments("qwen3-14b-awq") == common | large


def test_thinking_is_off_where_the_model_has_it() -> None:
    cards = {name: load_card(name) for name in known_cards()}
    thinks = {name for name, card in cards.items() if "Qwen3" in card.model and "2507" not in card.model}
    assert thinks
    assert all(cards[name].chat_template_kwargs == {"enable_thinking": False} for name in thinks)
    assert load_card("qwen3-4b-2507-fp8").chat_template_kwargs == {}


@pytest.mark.parametrize(
    "pair",
    [
        ("qwen3-4b-2507-fp8", "qwen3-14b-awq"),
        ("qwen3-4b-2507-fp8-single", "qwen3-14b-awq-single"),
        ("qwen3-4b-awq-invariant", "qwen3-8b-awq-invariant"),
        ("smollm2-cpu", "smollm2-cpu-f32"),
    ],
)
def test_pairs_that_are_meant_to_be_served_side_by_side_can_be(pair: tuple[str, str]) -> None:
    check_together([load_card(name) for name in pair])


def test_cards_that_ask_for_invariance_switch_it_on_and_say_whether_it_was_validated() -> None:
    asked = {name: load_card(name) for name in known_cards() if load_card(name).batch_invariance.asked}
    assert {name for name, card in asked.items() if card.batch_invariance.validated} == {
        "qwen3-4b-awq-invariant",
        "qwen3-8b-awq-invariant",
    }
    for card in asked.values():
        assert card.env["VLLM_BATCH_INVARIANT"] == "1"
        assert card.flags["enable-prefix-caching"] is False
        assert card.flags["kv-cache-dtype"] == "auto"
    assert len(asked) == 4


def test_no_card_switches_invariance_on_without_saying_so() -> None:
    for name in known_cards():
        card = load_card(name)
        assert card.batch_invariance.asked == ("VLLM_BATCH_INVARIANT" in card.env)


# --- what is refused


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"prot": 1}, "unknown key `prot`; did you mean `port`?"),
        ({"port": 0}, "`port`"),
        ({"port": "x"}, "`port`"),
        ({"flags": {"port": 1}}, "a card's key for that is port"),
        ({"flags": {"gpu-memory-utilization": 0.5}}, "a card's key for that is gpu_memory_fraction"),
        ({"flags": {"api-key": "x"}}, "cards hold no secrets"),
        ({"flags": {"--noise": "off"}}, "`flags"),
        ({"env": {"HF_TOKEN": "x"}}, "cards hold no secrets"),
        ({"gpu": 0}, "`gpu` and `gpu_memory_fraction` go together"),
        ({"gpu_memory_fraction": 0.5}, "`gpu` and `gpu_memory_fraction` go together"),
        ({"gpu": 0, "gpu_memory_fraction": 1.5}, "`gpu_memory_fraction`"),
        ({"gpu": 0, "gpu_memory_fraction": 0.5}, "the simulated server uses none"),
        ({"extra_body": {"seed": 1}}, "`extra_body.seed` is not for `extra_body`"),
        ({"server": "vlm"}, "`server`"),
        ({"model": ""}, "`model`"),
        ({"batch_invariance": {"askd": True}}, "did you mean `asked`?"),
    ],
)
def test_a_fault_is_one_line_that_names_file_and_key(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    path = card_file(tmp_path, **content)
    with pytest.raises(ConfigError) as caught:
        load_card(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_that_names_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text("{name: x, model: small, port: 8001}")
    with pytest.raises(ConfigError, match="a card is named after its file"):
        load_card(str(tmp_path / "card.yaml"))


@pytest.mark.parametrize("text", ["- a\n", "a: [", "just text", ""])
def test_what_is_no_card_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"card\.yaml"):
        load_card(str(tmp_path / "card.yaml"))


def test_a_variable_is_secret_by_a_word_of_its_name() -> None:
    secret = ["HF_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "MY_SECRET", "DB_PASSWORD", "X_AUTHORIZATION", "token"]
    plain = ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS_PER_EXPERT", "VLLM_KV_CACHE_LAYOUT", "OMP_NUM_THREADS"]
    assert [name for name in secret + plain if is_secret(name)] == secret


def test_an_unknown_card_names_those_that_ship() -> None:
    with pytest.raises(ConfigError, match=r"no model card 'qwen'; cards that ship: .*qwen3-14b-awq"):
        load_card("qwen")


def test_more_than_a_gpus_memory_is_refused_with_the_sum(tmp_path: Path) -> None:
    def on(name: str, gpu: int, fraction: float) -> Any:
        return vllm_card(tmp_path, name, gpu=gpu, gpu_memory_fraction=fraction)

    check_together([on("a", 0, 0.36), on("b", 0, 0.54), on("c", 0, 0.1), on("d", 1, 0.9)])
    with pytest.raises(ConfigError, match=r"GPU 0: memory fractions add up to 1\.1, more than 1: a 0\.5 \+ b 0\.6"):
        check_together([on("a", 0, 0.5), on("b", 0, 0.6)])


def test_one_address_twice_is_refused(tmp_path: Path) -> None:
    one, other = (made_card(tmp_path, name, port=8001) for name in ("one", "other"))
    with pytest.raises(ConfigError, match="cards one and other both listen on"):
        check_together([one, other])


# --- the command


def test_every_kind_of_flag_becomes_what_a_command_line_takes(tmp_path: Path) -> None:
    flags = {"bare": True, "off": False, "number": 8, "part": 0.5, "word": "x", "json": {"b": 1, "a": [2]}}
    card = vllm_card(tmp_path, model="{cache}/m", served_name="s", flags=flags, sampling={"top_p": 0.9}, revision="abc")
    argv = command_of(card, cache=CACHE, python="/env/python").argv
    assert argv[:3] == ("/env/python", "-m", "vllm.entrypoints.openai.api_server")
    assert argv[3:9] == ("--model", "/cache/m", "--revision", "abc", "--served-model-name", "s")
    assert argv[-10:] == (
        *("--bare", "--no-off", "--number", "8", "--part", "0.5", "--word", "x"),
        *("--json", '{"a": [2], "b": 1}'),
    )
    assert argv[argv.index("--override-generation-config") + 1] == '{"top_p": 0.9}'


def test_the_gpu_is_counted_among_those_that_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [vllm_card(tmp_path, f"c{gpu}", gpu=gpu, gpu_memory_fraction=0.5) for gpu in (0, 1, 2)]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command_of(cards[2], cache=CACHE).env["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert command_of(cards[1], cache=CACHE).env["CUDA_VISIBLE_DEVICES"] == "7"
    with pytest.raises(ConfigError, match="shows 2"):
        command_of(cards[2], cache=CACHE)


def test_the_interpreter_is_as_asked_else_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = vllm_card(tmp_path)
    monkeypatch.setenv("FORKROLL_VLLM_PYTHON", "/env/python")
    assert command_of(card, cache=CACHE).argv[0] == "/env/python"
    assert command_of(card, cache=CACHE, python="/other/python").argv[0] == "/other/python"


# --- the digest


def test_the_digest_is_of_what_may_change_a_reply(tmp_path: Path) -> None:
    base = made_card(tmp_path, port=8001)
    same = [made_card(tmp_path, port=8002), made_card(tmp_path, port=8001, notes=["x"], start_seconds=5)]
    other = [
        made_card(tmp_path, port=8001, flags={"noise": "iid"}),
        made_card(tmp_path, port=8001, env={"A": "b"}),
        made_card(tmp_path, port=8001, model="large"),
        made_card(tmp_path, port=8001, chat_template_kwargs={"enable_thinking": False}),
    ]
    assert {card.digest for card in same} == {base.digest}
    assert len({card.digest for card in other} | {base.digest}) == len(other) + 1


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True).filter(
            lambda name: name not in ("port", "model", "host")
        ),
        st.booleans() | st.integers(-9, 99) | st.text("abc {}\"'-", min_size=1, max_size=6).filter(str.strip),
        max_size=4,
    )
)
def test_a_card_reads_back_as_itself(flags: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        card = made_card(Path(folder), port=1, flags=flags)
        again = made_card(Path(folder), **json.loads(card.model_dump_json(exclude={"name"})))
    assert again == card
    assert again.digest == card.digest
