"""Code that nobody vouches for: what is drawn is canonical, what is hostile is refused with the reason."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.envs.svg.markup import MAX_DEPTH, MAX_ELEMENTS, SvgError, read_markup

HEAD = '<svg viewBox="0 0 24 24">'


def written(inside: str) -> str:
    return read_markup(f"{HEAD}{inside}</svg>").svg


def test_code_is_written_anew_from_what_was_understood() -> None:
    text = "Here it is:\n```svg\n<?xml version='1.0'?><svg width='10px' height=\"20\" class='x' data-a=\"1\">"
    text += "<title>secret</title><path d='M0 0\n  L1 1' style='stroke:currentColor; stroke-width: 2'/>"
    text += "</svg>\n```"
    drawing = read_markup(text)
    assert drawing.svg == (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-5 0 20 20">'
        '<path d="M0 0 L1 1" stroke="black" stroke-width="2"/></svg>'
    )
    assert [shape.kind for shape in drawing.shapes] == ["path"]


def test_a_shape_alone_keeps_its_groups_and_gradients() -> None:
    inside = (
        '<defs><linearGradient id="a"><stop offset="0" stop-color="red"/></linearGradient></defs>'
        '<g transform="scale(2)"><rect width="2" height="3" fill="url(#a)"/><line x2="3"/></g>'
    )
    shapes = read_markup(f"{HEAD}{inside}</svg>").shapes
    assert [shape.kind for shape in shapes] == ["rect", "line"]
    assert re.findall(r"<(\w+)", shapes[0].svg) == ["svg", "defs", "linearGradient", "stop", "g", "rect"]
    assert read_markup(shapes[1].svg).svg == shapes[1].svg


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("<script>alert(1)</script>", "<script> is not allowed"),
        ('<image href="file:///etc/passwd"/>', "<image> is not allowed"),
        ('<use href="#a"/>', "<use> is not allowed"),
        ("<foreignObject/>", "<foreignObject> is not allowed"),
        ("<style>@import url(http://a.example)</style>", "<style> is not allowed"),
        ('<filter id="a"/>', "<filter> is not allowed"),
        ('<svg viewBox="0 0 1 1"/>', "<svg> is not allowed"),
        ('<animate attributeName="x"/>', "<animate> is not allowed"),
        ('<path onload="x()"/>', "onload is not allowed"),
        ('<linearGradient xlink:href="http://a.example/b.svg#c"/>', "xlink:href is not allowed"),
        ('<rect fill="url(http://a.example/b.svg#c)"/>', "value of fill is not understood"),
        ('<rect fill="URL(file:///etc/passwd)"/>', "value of fill is not understood"),
        ('<rect style="fill:url(../../secret.svg#a)"/>', "value of fill is not understood"),
        ('<rect style="background:url(//a.example)"/>', "must not hold an address"),
        ('<g clip-path="url(#a)"/>', "clip-path is not allowed"),
        ('<g xml:base="file:///"/>', "xml:base is not allowed"),
        ('<path d="M0 0 L1e999 1"/>', "a number of d is larger"),
        ('<rect width="99999999"/>', "a number of width is larger"),
        ('<path d="M0 0 <"/>', "not well-formed"),
        ('<path d="M0 0 &amp;"/>', "value of d is not understood"),
        ("<path><circle/></path>", "<circle> cannot stand inside <path>"),
        ("<?xml-stylesheet href='http://a.example'?>", "processing instructions"),
        ("&lol;", "not well-formed"),
        ("<![CDATA[x]]>", "document types, entities and CDATA"),
        ("<g>" * MAX_DEPTH + "</g>" * MAX_DEPTH, "nested more than"),
        ("<title>" * 99 + "</title>" * 99, "nested more than"),
        ("<g/>" * MAX_ELEMENTS, "more than 1000 elements"),
    ],
)
def test_hostile_code_is_refused_with_the_reason(inside: str, reason: str) -> None:
    with pytest.raises(SvgError, match=re.escape(reason)):
        written(inside)


def test_an_entity_bomb_is_refused_before_it_is_parsed() -> None:
    lines = ['<!DOCTYPE svg [<!ENTITY a0 "ha">']
    lines += [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)]
    with pytest.raises(SvgError, match="entities"):
        read_markup("".join(lines) + f"]>{HEAD}<title>&a9;</title></svg>")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no complete <svg"),
        ("</svg><svg", "no complete <svg"),
        ("<svg><path/></svg>", "needs a viewBox"),
        ('<svg viewBox="0 0 5"></svg>', "four numbers"),
        ('<svg viewBox="0 0 5 0"></svg>', "must be positive"),
        ('<svg viewBox="0 0 1e9 1e9"></svg>', "larger than 1e+06"),
        ('<svg viewBox="0 0 nan inf"></svg>', "four numbers"),
        ("<svgx></svgx></svg>", "not <svg>"),
        ("x" * 20_000, "at most 16384"),
    ],
)
def test_what_is_no_drawing_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SvgError, match=re.escape(reason)):
        read_markup(text)


TAGS = ["<svg viewBox='0 0 9 9'>", "</svg>", "<g>", "</g>", "<defs>", "</defs>", "<text>", "</text>"]
SHAPES = ["<path d='M0 0L5 5'/>", "<rect width='1e3' style='fill:red'/>", "<stop offset='0'/>"]
HOSTILE = ["<use href='#a'/>", "<circle r='3' onclick='x'/>", "<!DOCTYPE", "<!--", "-->", "&#x0;", "&amp;"]
tokens = st.sampled_from([*TAGS, *SHAPES, *HOSTILE, "\x00", "\ud800", "é", "url(", "'", '"', ">", "]]>"])


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(tokens, max_size=14), st.text(max_size=20))
def test_any_text_is_refused_or_has_a_canonical_form(parts: list[str], tail: str) -> None:
    for text in ("".join(parts) + tail, HEAD + "".join(parts) + tail + "</svg>"):
        try:
            drawing = read_markup(text)
        except SvgError as refusal:
            assert str(refusal)
            continue
        assert read_markup(drawing.svg).svg == drawing.svg
        assert not re.search(r"href|onclick|<use|<!|<text", drawing.svg)
