"""What is called before a run: credit functions and losses of a user's own, once, on a small batch.

Without this call, a function that raises, or returns something that nothing can learn from, would be noticed
only after the warm start. Credit that compares siblings without saying so would learn nothing in a run that
samples every task once. `stepwell check` tests the whole contract.
"""

from __future__ import annotations

from typing import Any

from stepwell.algos.declarations import FunctionSpec, Kind, load_function, read_traits
from stepwell.algos.recipes import Recipe
from stepwell.core.contract_report import ContractReport, run_checks
from stepwell.core.errors import ConfigError
from stepwell.core.user_objects import is_import_path


def refuse_broken_functions(recipe: Recipe) -> None:
    """Raise `ConfigError` if the recipe's credit function or loss is a user's own and fails when called."""
    for kind, spec in _list_own_functions(recipe):
        report = _call_once(kind, spec)
        for finding in report.findings:
            if not finding.ok:
                raise ConfigError(
                    f"{report.title}: {finding.detail}\n`stepwell check {spec.name}` tests all of it"
                )


def _list_own_functions(recipe: Recipe) -> list[tuple[Kind, FunctionSpec]]:
    functions: list[tuple[Kind, FunctionSpec]] = [("loss", recipe.loss)]
    if recipe.credit is not None:
        functions.insert(0, ("credit", recipe.credit))
    return [(kind, spec) for kind, spec in functions if is_import_path(spec.name)]


def _call_once(kind: Kind, spec: FunctionSpec) -> ContractReport:
    function, traits = load_function(kind, spec.name), read_traits(kind, spec.name, spec.kwargs)
    title, probe = f"{kind} {spec.name}", (spec.name, function, traits, spec.kwargs)
    checks: Any
    if kind == "credit":
        from stepwell.contracts import credit

        checks = [credit.returns_a_credit_result, credit.advantages_fit_the_action_tokens]
        if not traits.compares_siblings:  # tasks may then be sampled once, and nothing would be learnt
            checks.append(credit.siblings_are_compared_as_declared)
        return run_checks(title, checks, credit.CreditProbe(*probe))
    from stepwell.contracts import loss

    checks = (loss.returns_a_loss_and_metrics,)
    return run_checks(title, checks, loss.LossProbe(*probe))
