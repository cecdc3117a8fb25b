"""The six studies of the paper: equal but for tier and direction, and as G1 to G4 say."""

from itertools import product

import pytest

from harness.bundled import bundled
from harness.config import OpenAIModel, ServedModel, Study, identity, load_study
from harness.fork import fork_points
from harness.serving.card import check_together, load_card
from tests.made import make_base

TIERS, DIRECTIONS = ("full", "easy", "nudge"), ("up", "down")
ALL = [f"{tier}_{direction}" for tier, direction in product(TIERS, DIRECTIONS)]


def study(name: str) -> Study:
    return load_study(f"paper/{name}")


def test_these_six_and_no_others_ship() -> None:
    assert sorted(path.stem for path in (bundled("configs") / "paper").glob("*")) == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_they_differ_in_tier_and_direction_alone(name: str) -> None:
    first, other = identity(study("full_up")), identity(study(name))
    differing = {key for key in first.keys() | other.keys() if first.get(key) != other.get(key)}
    assert differing <= {
        *("name", "tasks.difficulty", "tasks.append"),
        *(f"directions.{direction}.{role}" for direction in DIRECTIONS for role in ("base", "swap")),
    }


@pytest.mark.parametrize("name", ALL)
def test_setup_is_the_paper_s(name: str) -> None:
    made, (tier, direction) = study(name), name.split("_")
    assert made.name == f"{tier}-{direction}"
    assert (made.scaffold.name, made.dialect) == ("mini-swe-agent", "tool_call")
    assert (made.limits.calls, made.limits.action_seconds, made.limits.format_errors) == (50, 120, 3)
    assert (made.sampling.temperature, made.sampling.max_tokens) == (0.0, 2048)
    assert (made.forks.rule, made.forks.at) == ("paper_fraction", (0.3, 0.7))
    assert (set(made.arms), made.replicates, made.budget) == ({"swap", "control"}, 1, "refund")
    assert made.grading.of == "submission"
    (only,) = made.directions.values()
    assert (only.base, only.swap) == (("small", "large") if direction == "up" else ("large", "small"))
    assert (made.tasks.source, made.tasks.shuffle, made.tasks.slice) == ("verified", 42, "0:30")
    assert made.tasks.difficulty == (None if tier == "full" else ("<15 min fix",))
    assert (made.tasks.append is None) == (tier != "nudge")


def test_no_seed_is_sent() -> None:
    for model in study("full_up").models.values():
        assert isinstance(model, ServedModel)
        assert model.omit == ("seed",)


def test_servers_are_the_paper_s_and_fit_one_gpu() -> None:
    models = study("full_up").models
    cards = {name: load_card(model.card) for name, model in models.items() if isinstance(model, ServedModel)}
    check_together(list(cards.values()))
    assert cards["small"].model == "Qwen/Qwen3-4B-Instruct-2507-FP8"
    assert cards["large"].model == "Qwen/Qwen3-14B-AWQ"
    assert (cards["small"].gpu_memory_fraction, cards["large"].gpu_memory_fraction) == (0.36, 0.54)
    assert cards["large"].chat_template_kwargs == {"enable_thinking": False}
    for card in cards.values():
        assert (card.context, card.tool_parser, card.gpu) == (28672, "hermes", 0)
        assert card.flags == {"kv-cache-dtype": "fp8", "max-num-seqs": 8, "enforce-eager": True}


def test_thinking_is_off_in_what_is_sent() -> None:
    from harness.clients import address_of

    model = study("full_up").models["large"]
    assert isinstance(model, ServedModel)
    address = address_of(load_card(model.card), model)
    assert isinstance(address, OpenAIModel)
    assert address.chat_template_kwargs == {"enable_thinking": False}
    assert address.omit == ("seed",)


def test_fork_points_round_as_the_paper_s() -> None:
    """k = max(1, round(f n)), Python's round, n the replies that parsed."""
    made = study("full_up")
    for length in (1, 2, 5, 15, 25, 50):
        points = fork_points(make_base(["ls"] * length), made.forks, made.limits)
        assert sorted({max(1, round(f * length)) for f in (0.3, 0.7)}) == [point.step for point in points]
