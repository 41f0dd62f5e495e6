"""Makes text of other users safe for a terminal.

Names, commands, reasons and output come from jobs. Control characters in them could change the
window's title, overwrite earlier output, or paste text into the shell.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: control characters, C1 included, and characters that change the direction of text
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: maximum length of an unfinished sequence; a longer one is taken for text
_LONGEST = 4096

_ESCAPE = b"\x1b"
_WHOLE = re.compile(
    rb"\x1b(?:"
    rb"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, erasing
    rb"|[\]PX^_].*?(?:\x07|\x1b\\)"  # OSC, DCS and the like: titles, the clipboard
    rb"|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])",  # character sets, keypad modes, a reset
    re.DOTALL,
)
_COLOURS = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K")  # and erasing the rest of a line
_DROPPED = re.compile(rb"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")


def visible(text: str, keep: str = "") -> str:
    r"""The text with control characters escaped as in source code, except those in `keep`.

    >>> visible("a\x1b[2Jb\n"), visible("a\nb", keep="\n"), visible("né")
    ('a\\x1b[2Jb\\n', 'a\nb', 'né')
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else _written(found[0]), text)


@lru_cache
def _written(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def tell(text: str) -> None:
    """Print one line with control characters escaped."""
    print(visible(text))


class OutputFilter:
    """Drops all control sequences but colours from the output of one process, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""  # a sequence that is not complete yet

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data
        made, position = [], 0
        while (start := data.find(_ESCAPE, position)) >= 0:
            made.append(data[position:start])
            found = _WHOLE.match(data, start)
            if found is None and len(data) - start <= _LONGEST:
                self._rest = data[start:]
                return _plain(b"".join(made))
            if found is not None and _COLOURS.fullmatch(found[0]):
                made.append(found[0])
            position = found.end() if found is not None else start + 1
        # may be the first byte of a control character in UTF-8
        self._rest = b"\xc2" if data.endswith(b"\xc2") else b""
        made.append(data[position : len(data) - len(self._rest)])
        return _plain(b"".join(made))

    def end(self) -> bytes:
        """The rest of a sequence that was never completed."""
        rest, self._rest = self._rest, b""
        return _plain(rest.replace(_ESCAPE, b""))


def _plain(data: bytes) -> bytes:
    return _DROPPED.sub(b"", data)
