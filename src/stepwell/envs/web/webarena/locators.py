"""Parses a locator: the short JavaScript expression by which a task names a part of a page.

    document.querySelector('[name="qty"').value
    [...document.querySelectorAll('a')].map(e => e.getAttribute('href') || '').join(' ')

A browser runs these as they are. Where no script runs, `locator_values.py` evaluates the tree that is parsed
here, over the page's HTML. The language is what the published tasks use, and no more:

    choice   := sum ("||" sum)*
    sum      := chain ("+" chain)*
    chain    := atom ( ("." | "?.") name [ "(" [argument] ")" ]  |  "[" number "]" )*
    atom     := name | text | number | "(" choice ")" | "[" "..." choice "]"
    argument := name "=>" choice | choice

Invariant: a parsed locator holds no code. Names are looked up in fixed tables when it is evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepwell.core import InputError

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\$]|\\.)*`)
      | (?P<number>\d+)
      | (?P<name>[A-Za-z_$][\w$]*)
      | (?P<sign>\.\.\. | \?\. | => | \|\| | [.+()\[\],])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ConstantNode:
    """A text or a number."""

    value: str | int


@dataclass(frozen=True, slots=True)
class NameNode:
    """`document`, or the parameter of a function."""

    name: str


@dataclass(frozen=True, slots=True)
class MemberNode:
    """A property of an object; with `optional`, of nothing it is nothing."""

    target: Node
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class CallNode:
    """A method of an object, with its arguments."""

    target: Node
    name: str
    arguments: tuple[Node, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ItemNode:
    """An element of a list, by its number."""

    target: Node
    index: int


@dataclass(frozen=True, slots=True)
class ArrowNode:
    """A function of one parameter."""

    parameter: str
    body: Node


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """`+` or `||` between two values."""

    sign: str
    left: Node
    right: Node


Node = ConstantNode | NameNode | MemberNode | CallNode | ItemNode | ArrowNode | OperatorNode


def parse_locator(text: str) -> Node:
    """The tree of a locator; `InputError` if it is outside the language."""
    parser = _Parser(text)
    node = parser.read_choice()
    parser.expect_end()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[tuple[str, str]] = []
        position, length = 0, len(text.rstrip().rstrip(";"))
        while position < length:
            match = _TOKEN.match(text, position)
            if match is None:
                raise InputError(f"cannot read the locator {text!r} at character {position}")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            position = match.end()

    def read_choice(self) -> Node:
        node = self._read_sum()
        while self._take_sign("||"):
            node = OperatorNode("||", node, self._read_sum())
        return node

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise InputError(f"cannot read the locator {self.text!r} from {self.tokens[self.at][1]!r} on")

    def _read_sum(self) -> Node:
        node = self._read_chain()
        while self._take_sign("+"):
            node = OperatorNode("+", node, self._read_chain())
        return node

    def _read_chain(self) -> Node:
        node = self._read_atom()
        while True:
            optional = self._take_sign("?.")
            if optional or self._take_sign("."):
                name = self._take("name")
                if self._take_sign("("):
                    node = CallNode(node, name, self._read_arguments(), optional)
                else:
                    node = MemberNode(node, name, optional)
            elif self._take_sign("["):
                node = ItemNode(node, int(self._take("number")))
                self._need_sign("]")
            else:
                return node

    def _read_atom(self) -> Node:
        if self._take_sign("("):
            node = self.read_choice()
            self._need_sign(")")
            return node
        if self._take_sign("["):
            self._need_sign("...")
            node = self.read_choice()
            self._need_sign("]")
            return node
        kind, text = self._peek_token()
        if kind == "text":
            return ConstantNode(re.sub(r"\\(.)", r"\1", text[1:-1]))
        if kind == "number":
            return ConstantNode(int(text))
        if kind == "name":
            return NameNode(text)
        raise InputError(f"cannot read the locator {self.text!r}: {text!r} is not expected there")

    def _read_arguments(self) -> tuple[Node, ...]:
        arguments: list[Node] = []
        while not self._take_sign(")"):
            arguments.append(self._read_argument())
            if not self._take_sign(","):
                self._need_sign(")")
                break
        return tuple(arguments)

    def _read_argument(self) -> Node:
        if self.tokens[self.at + 1 : self.at + 2] == [("sign", "=>")]:
            name = self._take("name")
            self._need_sign("=>")
            return ArrowNode(name, self.read_choice())
        return self.read_choice()

    def _peek_token(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise InputError(f"the locator {self.text!r} ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, kind: str) -> str:
        found, text = self._peek_token()
        if found != kind:
            raise InputError(f"cannot read the locator {self.text!r}: a {kind} is expected, not {text!r}")
        return text

    def _take_sign(self, sign: str) -> bool:
        if self.tokens[self.at : self.at + 1] == [("sign", sign)]:
            self.at += 1
            return True
        return False

    def _need_sign(self, sign: str) -> None:
        if not self._take_sign(sign):
            raise InputError(f"cannot read the locator {self.text!r}: {sign!r} is missing")
