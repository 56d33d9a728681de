"""What all tests share: hypothesis tries the same examples in every run, and takes the time they need."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from npformer.runtime.threads import single_blas_thread
from tests.support import kernels

settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """As a model's run has it. Functions called alone leave BLAS its threads, which share out a product's inner axis
    and rows by their own rules: a row's last bits may then depend on the rows beside it."""
    with single_blas_thread():
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in kernels.left_out:
        terminalreporter.write_line(line)
