"""The command line: parse, call one function, print."""

from __future__ import annotations

import os
import sys

# One thread for linear algebra: runs are reproducible to the byte, and quicker at our sizes.
# Set before numpy is imported anywhere.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

INTERRUPTED = 130  # as shells count it: 128 + SIGINT


def main() -> None:
    """The `ones` command. Errors are one line; their exit code says who must act."""
    from ones.cli.app import app
    from ones.errors import BugError, OnesError

    try:
        app(prog_name="ones", standalone_mode=True)
    except KeyboardInterrupt:
        print("ones: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader has seen enough, as in `ones ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except BugError as error:
        print(f"ones: bug: {error}", file=sys.stderr)
        if os.environ.get("ONES_TRACEBACK"):
            raise
        print("ones: set ONES_TRACEBACK=1 to see where; please report it", file=sys.stderr)
        sys.exit(error.exit_code)
    except OnesError as error:
        print(f"ones: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
