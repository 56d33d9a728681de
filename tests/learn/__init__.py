"""The course, `npformer learn`: its exercises, its verdicts, and everything that a learner does."""
