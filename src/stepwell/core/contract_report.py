"""The report of a contract checker: one finding per check, with the evidence.

A check is a function named for the fact it tests. It returns its evidence, or raises `ContractError` with
the problem and the remedy. Any other exception also counts as a failure, so that one broken part does not
hide the others. Where the first check of a kind is the basis of the others, they are skipped if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stepwell.core.errors import ContractError, MissingPackageError
from stepwell.core.user_code import format_own_lines

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: whether it holds, with the evidence."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, repr=False)
class ContractReport:
    """All findings about one object."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(finding.ok for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        width = max((len(finding.name) for finding in self.findings), default=0)
        lines = [f"{'ok' if f.ok else 'FAILED':6}  {f.name:{width}}  {f.detail}" for f in self.findings]
        return "\n".join([self.title, *lines])

    __repr__ = __str__  # a notebook shows the table


def run_checks(
    title: str, checks: Sequence[Callable[[P], str]], probe: P, *, needs_first: bool = True
) -> ContractReport:
    """Run the checks of a kind on `probe`; with `needs_first`, the others need the first one to hold."""
    return ContractReport(title, tuple(_find(checks, probe, needs_first)))


def _find(checks: Sequence[Callable[[P], str]], probe: P, needs_first: bool) -> Iterator[Finding]:
    for number, check in enumerate(checks):
        try:
            finding = Finding(check.__name__, True, check(probe))
        except ContractError as broken:
            finding = Finding(check.__name__, False, str(broken))
        except MissingPackageError:  # no fault of what is checked
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything
            finding = Finding(check.__name__, False, f"it raised:\n{format_own_lines(error)}")
        yield finding
        if needs_first and number == 0 and not finding.ok and len(checks) > 1:
            yield Finding("further_checks", False, f"left out: the other {len(checks) - 1} need this one")
            return
