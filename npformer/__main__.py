"""`python -m npformer`, and the command `npformer`: see `npformer.cli`."""

import sys

from npformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
