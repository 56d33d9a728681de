"""Settings for all tests: a worker for each core (at most 8), and the same hypothesis examples in every run."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from npformer.engine.runtime.threads import blas_libraries, single_blas_thread
from npformer.golden.page_edits import of_model
from tests.support import absent_models, kernels

settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


absent_models.watch()

#: Maximum seconds of a diagnosis's search for edits of the page, and the seconds that each hidden stage adds to them.
#: Only tests marked `edits` use the result of the search, so all other tests search only briefly.
SEARCH, BRIEF = (of_model.FULL, of_model.EACH), (0.2, 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps the garbage collector from traversing the thousands of tests, during collection and later.

    The collector also runs less often, because tests make many small objects but few cycles.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    absent_models.begin()
    of_model.FULL, of_model.EACH = SEARCH if item.get_closest_marker("edits") else BRIEF
    return (yield)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    absent_models.skipped(item, (yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    absent_models.skipped(item, (yield))


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS to one thread, as a model does while it runs. A function that is called on its own does not limit
    BLAS, whose threads may divide a product so that the last bits of a row depend on the other rows."""
    with single_blas_thread():
        yield


@pytest.fixture
def settable_blas() -> None:
    """Skips a test if threadpoolctl cannot set the number of threads of this BLAS, for example a libblas.so."""
    if not blas_libraries():
        pytest.skip("threadpoolctl can set no threads of this BLAS")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Starts a worker for each core, at most 8, unless -n, --pdb or --collect-only is given. A file's tests share a
    worker and its fixtures. If only files are named, the tests run in this process."""
    option = config.option
    if hasattr(config, "workerinput") or getattr(option, "numprocesses", 0) is not None:
        return  # this is a worker, -n is given, or pytest-xdist is missing
    named = all(Path(argument.partition("::")[0]).is_file() for argument in config.args)
    if not (named or option.usepdb or option.collectonly):
        option.numprocesses, option.dist = min(os.cpu_count() or 1, 8), "loadfile"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = kernels.left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects the names of the kernels that a worker skipped, unless the worker crashed."""
    kernels.left_out.extend(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in dict.fromkeys(kernels.left_out):
        terminalreporter.write_line(line)
