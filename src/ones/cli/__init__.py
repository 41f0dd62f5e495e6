"""The command line: parse, call one function, print."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# One thread for linear algebra: runs are reproducible to the byte, and quicker at our sizes.
# Set before numpy is imported anywhere.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Compiled kernels are kept where other caches are, and not beside the source.
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("NUMBA_CACHE_DIR", str(_caches / "ones" / "numba"))

INTERRUPTED = 130  # as shells count it: 128 + SIGINT


def main() -> None:
    """The `ones` command. Errors are one line; their exit code says who must act."""
    from ones.errors import BrokenPolicyError, BugError, OnesError

    try:
        code = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # the reader has seen enough, as in `ones ... | head`
        _drop_output()
    except OSError as error:
        _complain(f"{error.filename or 'standard output'}: {error.strerror}")
        code = 1
        _drop_output()
    except BugError as error:
        whose = "the policy: " if isinstance(error, BrokenPolicyError) else ""
        _complain(f"bug: {whose}{error}")
        if os.environ.get("ONES_TRACEBACK"):
            raise
        _complain("set ONES_TRACEBACK=1 to see where; if it is not yours, please report it")
        code = error.exit_code
    except OnesError as error:
        _complain(str(error))
        code = error.exit_code
    sys.exit(code)


def _run() -> int:
    """Parse and call the command; its exit code."""
    import typer

    from ones.cli.app import app

    # typer may carry a copy of click, so that its errors are reached by a name of its own
    usage_error: Any = typer.BadParameter.__base__
    try:
        code = app(prog_name="ones", standalone_mode=False)
    except usage_error as error:
        message = error.format_message()  # "": the help was asked for by giving no argument
        if message:
            given: Any = getattr(error.__cause__, "errors", list)()  # of the parser, with the value
            got = f" (got {given[0]['input']!r})" if given else ""
            command = error.ctx.command_path if error.ctx else "ones"
            _complain(f"{message.rstrip('.')}{got} (see {command} --help)")
        return 2
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None  # which typer makes an error
        raise
    if code == INTERRUPTED:
        raise KeyboardInterrupt  # which typer makes a return code
    return code or 0


def _complain(text: str) -> None:
    from ones.cli.terminal import visible

    # what the service or a file says may be other users' text
    print(f"ones: {visible(text, keep=chr(10))}", file=sys.stderr)


def _drop_output() -> None:
    """Nobody can take it: let the interpreter not try again when it leaves."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
