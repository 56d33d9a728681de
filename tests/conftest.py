"""What all tests share: hypothesis tries the same examples in every run, and takes the time they need."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from npformer.runtime.threads import blas_libraries, single_blas_thread
from tests.support import kernels

settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """As a model's run has it. Functions called alone leave BLAS its threads, which share out a product's inner axis
    and rows by their own rules: a row's last bits may then depend on the rows beside it."""
    with single_blas_thread():
        yield


@pytest.fixture
def settable_blas() -> None:
    """For what is claimed of a BLAS whose threads threadpoolctl can set, as OpenBLAS's. It knows no libblas.so."""
    if not blas_libraries():
        pytest.skip("threadpoolctl can set no threads of this BLAS")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in kernels.left_out:
        terminalreporter.write_line(line)
