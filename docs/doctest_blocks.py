"""Extension of griffe: doctests of docstrings are shown as code on the site."""

from __future__ import annotations

import re

from griffe import Extension, Object

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)


class DoctestBlocks(Extension):
    """Puts each doctest of a docstring between fences."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
