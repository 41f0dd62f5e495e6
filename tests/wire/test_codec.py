"""How values travel: what goes out comes back, and nothing else comes in."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.errors import InvalidJobError
from ones.wire.codec import Codec, CodecError, parse

Name = NewType("Name", str)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float


ORIGIN = Point(0, 0.0)


@dataclass(frozen=True, slots=True)
class Square:
    side: int

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f"side {self.side} is not at least 1")


@dataclass(frozen=True, slots=True)
class Circle:
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise InvalidJobError("circle", f"radius {self.radius} is negative")


@dataclass(frozen=True, slots=True)
class Tree:
    name: Name
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Every type that a field may have."""

    count: int
    weight: float
    sealed: bool = False
    label: Name = Name("")
    colour: Colour | None = None
    point: Point = ORIGIN
    pair: tuple[int, str] = (0, "")
    words: tuple[str, ...] = ()
    numbers: list[float] = field(default_factory=list)
    colours: frozenset[Colour] = frozenset()
    points: set[Point] = field(default_factory=set)
    prices: Mapping[str, float] = field(default_factory=dict)
    places: dict[Point, Colour] = field(default_factory=dict)
    shape: Square | Circle | None = None
    shapes: tuple[Square | Circle, ...] = ()
    tree: Tree | None = None
    anything: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stranger:
    """Has the fields of a Square, and is none of the classes that travel."""

    side: int


CODEC = Codec(Parcel, Square)

floats = st.floats(allow_nan=False)
points = st.builds(Point, st.integers(), floats)
shapes = st.builds(Square, st.integers(1)) | st.builds(Circle, st.floats(0, allow_nan=False))
trees: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, st.text().map(Name)),
    lambda children: st.builds(
        Tree, st.text().map(Name), st.lists(children, max_size=3).map(tuple)
    ),
    max_leaves=5,
)
plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
parcels = st.builds(
    Parcel,
    count=st.integers(),
    weight=floats,
    sealed=st.booleans(),
    label=st.text().map(Name),
    colour=st.none() | st.sampled_from(Colour),
    point=points,
    pair=st.tuples(st.integers(), st.text()),
    words=st.lists(st.text(), max_size=3).map(tuple),
    numbers=st.lists(floats, max_size=3),
    colours=st.frozensets(st.sampled_from(Colour)),
    points=st.sets(points, max_size=3),
    prices=st.dictionaries(st.text(), floats, max_size=3),
    places=st.dictionaries(points, st.sampled_from(Colour), max_size=3),
    shape=st.none() | shapes,
    shapes=st.lists(shapes, max_size=3).map(tuple),
    tree=st.none() | trees,
    anything=st.dictionaries(st.text(), plain_values, max_size=3),
)


def through_text(parcel: Parcel) -> Parcel:
    made = CODEC.decode(parse(json.dumps(CODEC.encode(parcel), allow_nan=False)))
    assert isinstance(made, Parcel)
    return made


@given(parcels)
def test_what_goes_out_comes_back(parcel: Parcel) -> None:
    assert through_text(parcel) == parcel


@given(parcels)
def test_what_came_back_goes_out_as_the_same_text(parcel: Parcel) -> None:
    assert json.dumps(CODEC.encode(through_text(parcel))) == json.dumps(CODEC.encode(parcel))


@given(parcels)
def test_fields_at_their_default_do_not_travel(parcel: Parcel) -> None:
    plain = CODEC.encode(parcel)
    least = CODEC.encode(Parcel(count=parcel.count, weight=parcel.weight))
    assert set(least) == {"type", "count", "weight"}
    assert ("sealed" in plain) == parcel.sealed
    assert ("tree" in plain) == (parcel.tree is not None)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_number_travels_as_a_word(value: float) -> None:
    assert CODEC.encode(Parcel(count=1, weight=value))["weight"] == str(value)
    assert through_text(Parcel(count=1, weight=value)).weight == value


def test_not_a_number_travels_as_a_word() -> None:
    assert CODEC.encode(Parcel(count=1, weight=math.nan))["weight"] == "nan"
    assert math.isnan(through_text(Parcel(count=1, weight=math.nan)).weight)


def test_a_whole_number_in_a_float_field_reads_back_to_the_same_text() -> None:
    """An engine may count time in whole seconds; a replay must still write the same plans."""
    parcel = Parcel(count=1, weight=45)
    assert json.dumps(CODEC.encode(parcel)) == json.dumps(CODEC.encode(through_text(parcel)))


def test_a_class_that_does_not_belong_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="Stranger does not travel here"):
        CODEC.encode(Stranger(1))


def test_a_namesake_of_a_class_that_belongs_is_not_encoded() -> None:
    namesake = type("Square", (Stranger,), {})
    with pytest.raises(TypeError, match="Square does not travel here"):
        CODEC.encode(namesake(1))


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        ("Stranger", "'Stranger'"),
        ("Circle", "'Circle'"),  # known inside a parcel, but not by itself
        ("os.system", "'os.system'"),
        ("__main__.Stranger", "'__main__.Stranger'"),
        (None, "None"),
        (["Square"], r"\['Square'\]"),
        (0, "0"),
    ],
)
def test_no_input_can_name_a_class_outside_the_closed_set(tag: object, shown: str) -> None:
    with pytest.raises(CodecError, match=f"^type: {shown} is not one of Parcel, Square$"):
        CODEC.decode({"type": tag, "side": 1})


@given(plain_values)
def test_whatever_comes_in_only_known_classes_come_out(plain: object) -> None:
    try:
        made = CODEC.decode(plain)
    except CodecError:
        return
    assert type(made) in (Parcel, Square)


@given(st.dictionaries(st.sampled_from([*Parcel.__slots__, "type", "x"]), plain_values))
def test_any_fields_give_a_parcel_or_a_problem_with_one_of_them(plain: dict[str, Any]) -> None:
    try:
        made = CODEC.decode({**plain, "type": "Parcel"})
    except CodecError as problem:
        made = problem
    if isinstance(made, CodecError):
        assert made.field.split(".")[0] in (*Parcel.__slots__, "x")
    else:
        assert isinstance(made, Parcel)


GOOD = {"type": "Parcel", "count": 1, "weight": 2.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colr": "red"}, "colr: Parcel has no such field ('red')"),
        ({"count": None}, "count: None is not a whole number"),
        ({"count": 1.0}, "count: 1.0 is not a whole number"),
        ({"count": True}, "count: True is not a whole number"),
        ({"count": "1"}, "count: '1' is not a whole number"),
        ({"weight": "heavy"}, "weight: 'heavy' is not a number"),
        ({"weight": "NaN"}, "weight: 'NaN' is not a number"),
        ({"weight": True}, "weight: True is not a number"),
        ({"weight": None}, "weight: None is not a number"),
        ({"sealed": 1}, "sealed: 1 is not true or false"),
        ({"label": 7}, "label: 7 is not a string"),
        ({"colour": "green"}, "colour: 'green' is not one of red, blue"),
        ({"colour": []}, "colour: [] is not one of red, blue"),
        ({"point": [1]}, "point: [1] has not 2 items"),
        ({"point": [1, 2, 3]}, "point: [1, 2, 3] has not 2 items"),
        ({"point": {"x": 1, "y": 2}}, "point: {'x': 1, 'y': 2} is not a list"),
        ({"pair": ["a", "b"]}, "pair: 'a' is not a whole number"),
        ({"words": "abc"}, "words: 'abc' is not a list"),
        ({"prices": ["a"]}, "prices: ['a'] is not an object"),
        ({"prices": {"tea": "dear"}}, "prices.tea: 'dear' is not a number"),
        ({"places": [[[0, 0], "red", 1]]}, "places: [[[0, 0], 'red', 1]] is not a list of pairs"),
        ({"shape": {"side": 1}}, "shape.type: None is not one of Square, Circle"),
        ({"shape": {"type": "Tree"}}, "shape.type: 'Tree' is not one of Square, Circle"),
        ({"shape": {"type": "Square"}}, "shape.side: is missing"),
        ({"shape": {"type": "Square", "side": 0}}, "shape: side 0 is not at least 1"),
        (
            {"shape": {"type": "Circle", "radius": -1}},
            "shape: job circle: radius -1.0 is negative",
        ),
        ({"shape": 5}, "shape: 5 is not an object"),
        ({"tree": {"name": "a", "children": [{}]}}, "tree.children.name: is missing"),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_value(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CodecError) as caught:
        CODEC.decode({**GOOD, **changes})
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["count", "weight"])
def test_a_missing_field_is_named(missing: str) -> None:
    with pytest.raises(CodecError, match=f"^{missing}: is missing$"):
        CODEC.decode({key: value for key, value in GOOD.items() if key != missing})


@pytest.mark.parametrize("plain", [None, 3, "Parcel", [], [GOOD]])
def test_what_is_no_object_is_refused(plain: object) -> None:
    with pytest.raises(CodecError, match="is not an object"):
        CODEC.decode(plain)


def test_a_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(CodecError, match=r"^weight: 1000.* is too large$"):
        CODEC.decode({**GOOD, "weight": 10**400})


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(CodecError) as caught:
        CODEC.decode({**GOOD, "count": "x" * 10_000})
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not JSON: Expecting value at column 1"),
        ("garbage", "'garbage' is not JSON: Expecting value at column 1"),
        ('{"a":1', "'{\"a\":1' is not JSON: Expecting ',' delimiter at column 7"),
        ("NaN", "'NaN' is not JSON: it knows no NaN"),
        ("[-Infinity]", "'[-Infinity]' is not JSON: it knows no -Infinity"),
    ],
)
def test_text_that_is_not_json_is_shown(text: str, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [b"\xff\xfe", "[" * 100_000, "9" * 10_000])
def test_text_that_would_break_a_parser_is_refused_like_any_other(text: str | bytes) -> None:
    with pytest.raises(CodecError, match="is not JSON"):
        parse(text)


def test_a_type_without_an_encoding_is_our_mistake() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: complex

    codec = Codec(Odd)
    with pytest.raises(TypeError, match="no encoding"):
        codec.encode(Odd(1j))
    with pytest.raises(TypeError, match="no decoding"):
        codec.decode({"type": "Odd", "value": 1})


def test_a_codec_may_be_used_first_by_many_threads_at_once() -> None:
    """A decoder that is half made in one thread is not seen by another."""

    def decode_all(start: threading.Barrier, codec: Codec, plain: dict[str, Any]) -> object:
        start.wait()
        return codec.decode(plain)

    plain = Codec(Outer).encode(Outer(Inner("a", (1.0,))))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(100):
                start, codec = threading.Barrier(8), Codec(Outer)
                found = [pool.submit(decode_all, start, codec, plain) for _ in range(8)]
                assert all(f.result() == Outer(Inner("a", (1.0,))) for f in found)
    finally:
        sys.setswitchinterval(before)


@dataclass(frozen=True)
class Inner:
    name: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outer:
    inner: Inner
    others: tuple[Inner, ...] = ()
    words: Mapping[str, Inner | None] = field(default_factory=dict)
