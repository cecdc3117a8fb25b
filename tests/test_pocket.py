"""Each bundled task is what it claims: the reference resolves, each wrong patch and the untouched tree do not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.record import Task
from harness.sandbox.local import LocalProvider
from harness.sandbox.protocol import SandboxLimits
from harness.score import score
from harness.tasks.pocket import TEST_COMMAND, Pocket, PocketTask, pocket_tasks

POCKET = pocket_tasks()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Pocket:
    return Pocket(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProvider]:
    made = LocalProvider(limits=SandboxLimits(), scratch=tmp_path_factory.mktemp("scratch"))
    yield made
    made.close()


@pytest.fixture(params=list(POCKET))
def pocket(request: pytest.FixtureRequest) -> PocketTask:
    return POCKET[request.param]


@pytest.fixture
def task(pocket: PocketTask, tasks: Pocket) -> Task:
    return next(task for task in tasks.tasks() if task.instance_id == pocket.facts["instance_id"])


def test_there_are_enough_and_of_every_difficulty() -> None:
    assert len(POCKET) >= 16
    assert {task.facts["difficulty"] for task in POCKET.values()} == {"<15 min fix", "15 min - 1 hour", "1-4 hours"}


def test_only_the_reference_resolves(pocket: PocketTask, task: Task, tasks: Pocket, provider: LocalProvider) -> None:
    assert task.FAIL_TO_PASS and task.PASS_TO_PASS
    assert pocket.diff("right") == task.patch
    right = score(task, task.patch.encode(), tasks, provider)
    assert (right.status, right.detail) == ("resolved", "")
    for version in ("wrong_1", "wrong_2"):
        wrong = score(task, pocket.diff(version).encode(), tasks, provider)
        assert (wrong.status, wrong.detail.startswith("not passed: test_")) == ("unresolved", True)


def test_the_untouched_tree_fails_what_it_should_and_passes_the_rest(
    task: Task, tasks: Pocket, provider: LocalProvider
) -> None:
    harmless = (
        b"diff --git a/added.txt b/added.txt\nnew file mode 100644\n--- /dev/null\n+++ b/added.txt\n@@ -0,0 +1 @@\n+x\n"
    )
    untouched = score(task, harmless, tasks, provider)
    assert untouched.status == "unresolved"
    assert untouched.fail_to_pass == (0, len(task.FAIL_TO_PASS))
    assert untouched.pass_to_pass == (len(task.PASS_TO_PASS), len(task.PASS_TO_PASS))


def test_visible_tests_pass_in_every_version_and_print_the_same_bytes_twice(
    pocket: PocketTask, task: Task, tasks: Pocket, provider: LocalProvider
) -> None:
    for version in ("repo", "right", "wrong_1", "wrong_2"):
        with provider.start(tasks.image(task)) as sandbox:
            for path, text in pocket.changed(version).items():  # type: ignore[arg-type]
                sandbox.write_file(path, text.encode())
            one, other = (sandbox.act(TEST_COMMAND, timeout_s=20) for _ in range(2))
            assert (one.exit_code, one.sha256) == (0, other.sha256)


def test_an_empty_patch_and_one_that_does_not_apply_are_their_own_classes(
    tasks: Pocket, provider: LocalProvider
) -> None:
    task = tasks.tasks()[0]
    assert score(task, b"  \n", tasks, provider).detail == "empty patch"
    assert score(task, b"not a patch\n", tasks, provider).detail == "patch does not apply"


def test_result_lines_printed_by_the_code_under_test_win_nothing(tasks: Pocket, provider: LocalProvider) -> None:
    task = tasks.tasks()[0]
    module = next(path for path in POCKET[task.instance_id].start if path.endswith("__init__.py"))
    forged = "".join(f"print('PASS {name}')\n" for name in (*task.FAIL_TO_PASS, *task.PASS_TO_PASS))
    with provider.start(tasks.image(task)) as sandbox:
        old = sandbox.read_file(module)
        sandbox.write_file(module, forged.encode() + old)
        patch = sandbox.working_diff(task.base_commit)
    outcome = score(task, patch, tasks, provider)
    assert outcome.status == "unresolved"


def test_start_trees_are_equal_wherever_they_are_made(tasks: Pocket, tmp_path: Path) -> None:
    again = Pocket(tmp_path / "elsewhere")
    assert [task.base_commit for task in again.tasks()] == [task.base_commit for task in tasks.tasks()]
