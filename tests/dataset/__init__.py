"""Tests of `npformer.dataset`. They need the extras `data` and `cluster`, so the lane `extras` of .ci/run runs them."""
