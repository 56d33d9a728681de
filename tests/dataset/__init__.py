"""The tests of `npformer.dataset` need the extras `data` and `cluster`, so the lane `extras` of .ci/run runs them."""
