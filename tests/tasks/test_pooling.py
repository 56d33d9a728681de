"""Pooling compared with the papers' formulas on small arrays."""

from __future__ import annotations

import numpy as np
import pytest

from npformer.tasks.pooling import splade, weighted_mean

LOGITS = np.random.default_rng(0).standard_normal((5, 9))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_splade_is_the_formula_of_each_paper(dtype):
    each = np.log(1 + np.maximum(LOGITS, 0))
    for strategy, pooled in (("max", np.max), ("sum", np.sum)):
        for twice, values in ((False, each), (True, np.log(1 + each))):
            found = splade(LOGITS.astype(dtype), strategy, twice)
            assert found.dtype == dtype
            # rtol allows the rounding of log in float32
            np.testing.assert_allclose(found, pooled(values, axis=0), rtol=1e-6)


def test_a_word_that_no_token_votes_for_has_no_weight():
    assert (splade(-np.abs(LOGITS)) == 0).all()


def test_a_weighted_mean_counts_the_rows_of_a_prompt():
    ramp = np.arange(1, 6)[:, None]
    np.testing.assert_allclose(weighted_mean(LOGITS, 0), (LOGITS * ramp).sum(axis=0) / 15)
    np.testing.assert_allclose(weighted_mean(LOGITS, 2), (LOGITS * ramp)[2:].sum(axis=0) / 12)
