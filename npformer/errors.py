"""The one exception type for what a user can put right: a file, a setting, an argument.

Its message says where, what was expected, what came, and what to do.
"""


class NpformerError(ValueError):
    """Bad input: a corrupt checkpoint, an unsupported setting, a wrong argument."""
