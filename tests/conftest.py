"""What all tests share: hypothesis tries the same examples in every run, and takes the time they need."""

from hypothesis import settings

settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")
