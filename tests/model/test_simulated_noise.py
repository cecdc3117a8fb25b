"""Each kind of noise has its signature: what a diagnostic looks at, and nothing else, tells it from the rest."""

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

from harness.errors import ConfigError
from harness.model.simulated.engine import Engine, Generated
from harness.model.simulated.menu import pocket_menus
from harness.model.simulated.noise import Kind, Noise, kind
from harness.model.simulated.profiles import PROFILES
from harness.model.simulated.tokens import Turn
from harness.tasks.pocket import pocket_tasks

SMALL = PROFILES["small"]
N = 60
PROMPTS = [[Turn("user", pocket.facts["problem_statement"])] for pocket in pocket_tasks().values()]


def engine(noise: Kind, epoch: str = "1") -> Engine:
    return Engine(SMALL, Noise(noise, epoch))


def ask(engine_: Engine, turns: Sequence[Turn], seed: int) -> Generated:
    with engine_.noise.in_flight() as batch:
        return engine_.complete(turns, temperature=0.0, seed=seed, batch=batch)


def answered(turns: Sequence[Turn], reply: Generated) -> list[Turn]:
    return [*turns, Turn("assistant", reply.text), Turn("user", "exit code: 0\noutput:\n")]


def entries(replies: Sequence[Generated]) -> list[str]:
    return [reply.entry for reply in replies]


def test_off_never_varies_and_is_certain() -> None:
    one = engine("off")
    replies = [ask(one, PROMPTS[0], seed) for seed in range(N)]
    assert len({reply.text for reply in replies}) == 1
    assert {reply.propensity for reply in replies} == {1.0}


def test_exact_never_varies_whatever_the_noise() -> None:
    exact = Engine(PROFILES["exact"], Noise("iid", "1"))
    assert len({ask(exact, PROMPTS[0], seed).text for seed in range(N)}) == 1


def test_iid_varies_with_the_seed_and_repeats_with_it() -> None:
    one, other = engine("iid", "1"), engine("iid", "2")
    replies = [ask(one, PROMPTS[0], seed) for seed in range(N)]
    assert len(set(entries(replies))) > 1
    assert [ask(other, PROMPTS[0], seed).text for seed in range(N)] == [reply.text for reply in replies]


def test_large_varies_less_than_small() -> None:
    def changes(name: str) -> int:
        model = Engine(PROFILES[name], Noise("iid", "1"))
        return sum(len(set(entries([ask(model, prompt, seed) for seed in range(8)]))) - 1 for prompt in PROMPTS)

    assert changes("large") < changes("small")


def decode(engine_: Engine, prompt: Sequence[Turn], steps: int, seed: int) -> list[list[Turn]]:
    """The conversations of one rollout, one a call."""
    seen, turns = [], list(prompt)
    for step in range(steps):
        seen.append(turns)
        turns = answered(turns, ask(engine_, turns, seed * 100 + step))
    return seen


def test_position_strikes_only_where_a_sequence_is_taken_up_cold() -> None:
    quiet, noisy = engine("off"), engine("position")
    first_differs = later_differs = 0
    for number, prompt in enumerate(PROMPTS):
        calls = decode(noisy, prompt, 5, number)
        later_differs += sum(
            quiet.complete(turns, temperature=0.0, seed=0).entry != follower
            for turns, follower in zip(calls[1:-1], _followers(calls)[1:], strict=True)
        )
        expected = quiet.complete(calls[3], temperature=0.0, seed=0).entry
        first_differs += sum(ask(noisy, calls[3], 1000 * number + seed).entry != expected for seed in range(10))
    assert later_differs == 0
    assert first_differs > 10


def _followers(calls: Sequence[Sequence[Turn]]) -> list[str]:
    """The entry chosen at each call but the last, told from the call after it."""
    menu, names = pocket_menus().for_text(calls[0][0].text), []
    for before, following in pairwise(calls):
        reply = following[len(before)].text
        names.append(
            next(menu.names[at] for at, text in enumerate(menu.texts["text"]) if text and reply.endswith(text))
        )
    return names


def test_a_warm_call_says_that_it_was_certain() -> None:
    noisy = engine("position")
    cold = ask(noisy, PROMPTS[0], 1)
    warm = ask(noisy, answered(PROMPTS[0], cold), 2)
    again = ask(noisy, answered(PROMPTS[0], cold), 3)
    assert cold.propensity != 1.0
    assert warm.propensity == 1.0
    assert again.propensity != 1.0  # the sequence had moved on: a branch starts cold


def test_batch_shared_is_one_draw_for_all_in_flight_whatever_the_seed() -> None:
    one = engine("batch_shared")
    batches = []
    for _ in range(N):
        with one.noise.in_flight():  # keeps the batch open
            batches.append([ask(one, PROMPTS[0], seed) for seed in range(3)])
    assert all(len({reply.text for reply in batch}) == 1 for batch in batches)
    assert len({batch[0].entry for batch in batches}) > 1


def test_a_batch_ends_when_nothing_is_in_flight() -> None:
    noise = Noise("batch_shared", "1")
    with noise.in_flight() as first, noise.in_flight() as joined:
        assert first == joined
    with noise.in_flight() as second:
        assert second != first


def test_server_sticky_holds_for_an_epoch_and_changes_with_it() -> None:
    one = engine("server_sticky", "a")
    assert len({ask(one, PROMPTS[0], seed).text for seed in range(N)}) == 1
    chosen = [tuple(ask(engine("server_sticky", epoch), prompt, 1).entry for prompt in PROMPTS) for epoch in "abc"]
    assert len(set(chosen)) == 3


@pytest.mark.parametrize("noise", ["position", "batch_shared", "server_sticky"])
def test_above_zero_the_seed_decides_alone(noise: Kind) -> None:
    plain = engine("off").complete(PROMPTS[0], temperature=1.0, seed=5, batch=1)
    other = engine(noise, "z").complete(PROMPTS[0], temperature=1.0, seed=5, batch=9)
    assert (plain.text, plain.propensity) == (other.text, other.propensity)


def test_threads_get_what_one_thread_gets() -> None:
    alone = [ask(engine("iid"), prompt, 7).text for prompt in PROMPTS]
    shared, got = engine("iid"), [""] * len(PROMPTS)

    def work(at: int) -> None:
        got[at] = ask(shared, PROMPTS[at], 7).text

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == alone


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="pink"):
        kind("pink")
