"""How many requests are in flight: capped by family, fewer under throttling, in order, and known to each request."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.model.gate import Gate
from harness.model.openai import OpenAIClient
from harness.model.patience import Patience
from harness.model.protocol import Completion, Sampling
from tests.model.misbehaving import Answer, Served, serving

PATIENCE = Patience(first_wait_seconds=0.01, passing_attempts=20)


@contextlib.contextmanager
def client_of(served: Served, gate: Gate) -> Iterator[OpenAIClient]:
    with contextlib.closing(OpenAIClient(served.url, "served", gate=gate, patience=PATIENCE)) as client:
        yield client


def ask(client: OpenAIClient, seed: int) -> Completion:
    return client.complete([{"role": "user", "content": "hi"}], tools=[], sampling=Sampling(), seed=seed)


def test_twenty_jobs_of_two_families_peak_at_the_cap_and_above_it() -> None:
    tight, free = Gate(4), Gate()
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(serving([Answer(delay_s=0.1)])) for _ in range(2))
        first, second = (stack.enter_context(client_of(one, tight)) for _ in range(2))
        third = stack.enter_context(client_of(other, free))
        jobs = [first, third, second, third] * 5
        with ThreadPoolExecutor(20) as pool:
            done = list(pool.map(ask, jobs, range(20)))
    assert (one.peak, len(one.requests), len(other.requests)) == (4, 10, 10)
    assert other.peak > 4
    capped = [got.in_flight for job, got in zip(jobs, done, strict=True) if job is not third]
    assert max(number or 0 for number in capped) == 4 and min(number or 0 for number in capped) >= 1
    assert tight.facts()["peak_in_flight"] == 4


def test_a_throttling_server_is_asked_less_and_every_request_is_answered() -> None:
    """The server stands two requests at a time and refuses what comes beside them."""
    gate = Gate()
    refusal, answer = Answer(status=429, delay_s=0.02), Answer(delay_s=0.02)
    with (
        serving(lambda asked: refusal if asked.in_flight > 2 else answer) as served,
        client_of(served, gate) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        done = list(pool.map(lambda seed: ask(client, seed), range(24)))
    facts = gate.facts()
    assert len(done) == 24
    assert facts["lowest_limit"] in (1, 2) and facts["peak_in_flight"] == 8
    assert max(request.in_flight for request in served.requests[-8:]) < 8


def test_the_limit_halves_once_a_wave_and_creeps_up_again() -> None:
    gate = Gate(8)
    with contextlib.ExitStack() as stack:
        wave = [stack.enter_context(gate.request()) for _ in range(8)]
        for ticket in wave:
            gate.refused(ticket, None)
        assert gate.facts()["lowest_limit"] == 4
    with contextlib.ExitStack() as stack:
        wave = [stack.enter_context(gate.request()) for _ in range(4)]
        gate.refused(wave[0], None)
        assert gate.facts()["lowest_limit"] == 2
    for _ in range(2 + 3 + 4 + 5 + 6 + 7):
        gate.answered()
    with contextlib.ExitStack() as stack:
        assert [stack.enter_context(gate.request()).in_flight for _ in range(8)] == list(range(1, 9))


def test_one_is_the_least() -> None:
    gate = Gate(2)
    for _ in range(5):
        with gate.request() as ticket:
            gate.refused(ticket, None)
    with gate.request() as ticket:
        assert (ticket.in_flight, gate.facts()["lowest_limit"]) == (1, 1)


def test_a_named_wait_closes_the_gate_for_the_whole_family() -> None:
    gate = Gate()
    with gate.request() as ticket:
        gate.refused(ticket, 0.3)
    clock = time.monotonic()
    with gate.request():
        assert time.monotonic() - clock >= 0.29


def test_requests_enter_in_the_order_in_which_they_came() -> None:
    gate, entered = Gate(1), []

    def enter(number: int) -> None:
        with gate.request():
            entered.append(number)

    with gate.request():
        threads = [threading.Thread(target=enter, args=(number,)) for number in range(12)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            while gate.waiting() < count:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert entered == list(range(12))


def test_a_request_that_fails_gives_its_place_back() -> None:
    gate = Gate(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="lost"), gate.request():
            raise ValueError("lost")
    with gate.request() as ticket:
        assert ticket.in_flight == 1


def test_a_request_that_waits_holds_no_place() -> None:
    """The first is refused and backs off; the second, behind it at a gate for one, is answered meanwhile."""
    slow = Patience(first_wait_seconds=1.0)
    with (
        serving([Answer(status=500, delay_s=0.1), Answer()]) as served,
        contextlib.closing(OpenAIClient(served.url, "served", gate=Gate(1), patience=slow)) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(ask, client, 1)
        while not served.requests:
            time.sleep(0.001)
        second = pool.submit(ask, client, 2)
        assert (first.result().retries, second.result().retries) == (1, 0)
    assert [request.body["seed"] for request in served.requests] == [1, 2, 1]
