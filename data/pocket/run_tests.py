"""Run plain-assert tests: every function named test_* in the given files, or in tests/test_*.py.

Prints one line a test, in file order, then one line of totals. Nothing printed depends on time,
addresses or paths outside the repository, so two runs over one tree print the same bytes.
"""

import glob
import os
import sys
import types


def run_one(test):
    try:
        test()
    except Exception as error:
        first_line = str(error).split("\n", 1)[0]
        return f"{type(error).__name__}: {first_line}".rstrip(": ")
    return None


def load(path):
    module = types.ModuleType("tests_" + os.path.basename(path)[:-3])
    module.__file__ = path
    with open(path, encoding="utf-8") as source:
        exec(compile(source.read(), path, "exec"), module.__dict__)
    return [(name, value) for name, value in vars(module).items() if name.startswith("test_")]


def main(paths):
    sys.path.insert(0, os.getcwd())
    passed = failed = 0
    for path in paths or sorted(glob.glob("tests/test_*.py")):
        try:
            tests = load(path)
        except Exception as error:
            print(f"FAIL {os.path.basename(path)} does not load: {type(error).__name__}: {error}")
            failed += 1
            continue
        for name, test in tests:
            problem = run_one(test)
            print(f"FAIL {name}: {problem}" if problem else f"PASS {name}")
            passed, failed = (passed, failed + 1) if problem else (passed + 1, failed)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
