"""The command line: parse, call one function, print."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# One thread for linear algebra: runs are reproducible to the byte, and faster at our sizes.
# Must be set before numpy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Compiled kernels go to the user's cache directory instead of beside the source.
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("NUMBA_CACHE_DIR", str(_caches / "ones" / "numba"))

INTERRUPTED = 130  # as shells count it: 128 + SIGINT


def main() -> None:
    """The `ones` command. An error is one line; its exit code is that of the error class."""
    from ones.errors import BrokenPolicyError, BugError, OnesError, WorldError
    from ones.extras import extra_of, missing_extras

    try:
        code = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        _print_error("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # the reader has closed the pipe, as in `ones ... | head`
        _drop_output()
    except OSError as error:
        _print_error(f"{error.filename or 'standard output'}: {error.strerror}")
        code = 1
        _drop_output()
    except BugError as error:
        source = "the policy: " if isinstance(error, BrokenPolicyError) else ""
        _print_error(f"bug: {source}{error}")
        if os.environ.get("ONES_TRACEBACK"):
            raise
        _print_error(
            "set ONES_TRACEBACK=1 for a traceback; please report it unless it is in your own code"
        )
        code = error.exit_code
    except OnesError as error:
        _print_error(str(error))
        code = error.exit_code
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        _print_error(missing_extras(_command(sys.argv[1:]), [extra]))
        code = WorldError.exit_code
    sys.exit(code)


def _run() -> int:
    """Parse and run the command; returns its exit code."""
    import typer

    from ones.cli.app import app

    # typer may have its own copy of click, so its error class is found through typer
    usage_error: Any = typer.BadParameter.__base__
    try:
        code = app(prog_name="ones", standalone_mode=False)
    except usage_error as error:
        message = error.format_message()  # "": no arguments were given, and the help was printed
        if message:
            given: Any = getattr(
                error.__cause__, "errors", list
            )()  # errors of the parser, with the value
            got = f" (got {given[0]['input']!r})" if given else ""
            command = error.ctx.command_path if error.ctx else "ones"
            _print_error(f"{message.rstrip('.')}{got} (see {command} --help)")
        return 2
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None  # typer turns it into an exit
        raise
    if code == INTERRUPTED:
        raise KeyboardInterrupt  # typer turns it into a return code
    return code or 0


def _command(arguments: list[str]) -> str:
    """The words of the command line that name the command: "ones bench sim"."""
    import typer.main

    from ones.cli.app import app

    command: Any = typer.main.get_command(app)
    words = ["ones"]
    for argument in arguments:
        if argument not in getattr(command, "commands", {}):
            break
        command = command.commands[argument]
        words.append(argument)
    return " ".join(words)


def _print_error(text: str) -> None:
    from ones.cli.terminal import visible

    # the text may come from other users: control characters are made visible
    print(f"ones: {visible(text, keep=chr(10))}", file=sys.stderr)


def _drop_output() -> None:
    """Discard output that cannot be written; the interpreter would try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
