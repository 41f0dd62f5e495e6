"""A colour for each job, distinguishable for most readers.

Hues advance by the golden angle, so that consecutive jobs are far apart; lightness changes from job
to job, so that similar hues differ, too. All are light enough for dark text. Charts also show the
job's id.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import cos, pi, sin

from ones.core.job import JobId

Colour = tuple[float, float, float]  # sRGB, each in 0..1

_GOLDEN_ANGLE = 137.50776
_FIRST_HUE = 250.0  # blue
# Four levels: hues come close after 13, 21, 34 and 55 jobs, none of which is a multiple of 4.
_LIGHTNESS = (0.79, 0.69, 0.87, 0.74)
_CHROMA = (0.105, 0.125, 0.080, 0.115)


def job_colours(jobs: Iterable[JobId]) -> dict[JobId, Colour]:
    """Colours by the order of the jobs: a trace has the same colours in every chart."""
    return {job: _nth(i) for i, job in enumerate(dict.fromkeys(jobs))}


def faded(colour: Colour, share: float) -> Colour:
    """The colour mixed with white; `share` is that of the colour."""
    red, green, blue = (1.0 - share * (1.0 - part) for part in colour)
    return red, green, blue


def _nth(i: int) -> Colour:
    level = i % len(_LIGHTNESS)
    return _oklch(_LIGHTNESS[level], _CHROMA[level], _FIRST_HUE + i * _GOLDEN_ANGLE)


def _oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """Converts OKLCH, a perceptually uniform space, to sRGB; clips colours outside."""
    # Björn Ottosson, "A perceptual color space for image processing", 2020
    a, b = chroma * cos(hue * pi / 180), chroma * sin(hue * pi / 180)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _gamma(4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short),
        _gamma(-1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short),
        _gamma(-0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short),
    )


def _gamma(linear: float) -> float:
    linear = min(max(linear, 0.0), 1.0)
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
