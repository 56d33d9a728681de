"""The course, `npformer learn`: exercises, verdicts, and the whole path of a learner."""
