"""The optimizer and the learning rate of each update.

`adamw` for everything; or `muon`, which orthogonalises the momentum of every hidden weight
matrix and leaves embeddings, heads, norms and vectors to AdamW. On the tiny models Muon needs
about half the updates. AdamW's moments can be kept in 8 bits or in the host's memory (`compact_adamw.py`).

Both have one interface: `clip_gradients`, `step`, `state_dict`, `load_state_dict`, `set_rate(share)`.

Actor and critics are clipped apart, so that a critic that is far off does not slow the actor. A critic's
learning rate reaches all its weights, AdamW's and Muon's alike (an update of Muon is as large as one of AdamW
at the same rate).

16-bit weights are trained in 32 bits: the next bfloat16 number after 1 is 1.008, and the updates of
reinforcement learning, a thousand times smaller, would all be lost in rounding. Each such parameter
therefore has a float32 original here, which is updated and then rounded into it.

Invariants
* After a step every 16-bit parameter is its rounded original. Numbers of a parameter that were
  changed elsewhere in between (a checkpoint, another rank) replace those of the original.
* `load_state_dict(state_dict())` restores originals bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.config.training import OptimizerConfig
from stepwell.core import DivergenceError, InputError, WeightsError
from stepwell.training.compact_adamw import ByteMoments, CompactAdamW, HostMoments
from stepwell.training.muon import Muon, Orthogonalize

MOMENTUM = 0.95
ORIGINAL = "original"
"""Key of the float32 original of a 16-bit parameter in a named state."""
_BETA1 = 0.9
_HALF = (torch.bfloat16, torch.float16)


class Optimizer:
    """One or two torch optimizers behind one set of calls."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        config: OptimizerConfig,
        *,
        critic_rate: float | None = None,
        orthogonalize: Orthogonalize | None = None,
    ) -> None:
        given = list(parameters)
        self.parameters = [parameter for _, parameter in given]
        self._critic_parameters = [parameter for name, parameter in given if is_critic_name(name)]
        self._actor_parameters = [parameter for name, parameter in given if not is_critic_name(name)]
        self._originals = {
            id(p): (p, nn.Parameter(p.detach().float())) for p in self.parameters if p.dtype in _HALF
        }
        named = [(name, self._originals.get(id(p), (p, p))[1]) for name, p in given]
        self._named = dict(named)
        self._names = {id(p): name for name, p in named}
        hidden = [(n, p) for n, p in named if config.kind == "muon" and _is_hidden_matrix(n, p)]
        owned = {id(p) for _, p in hidden}
        rate = config.learning_rate
        groups = _group_by_role([(n, p) for n, p in named if id(p) not in owned], rate, critic_rate)
        self._parts: list[torch.optim.Optimizer] = []
        if groups:
            self._parts.append(_make_adamw(groups, config))
        if hidden:
            self._parts.append(
                Muon(
                    [p for _, p in hidden]
                    if critic_rate is None
                    else _group_by_role(hidden, config.muon_learning_rate, critic_rate),
                    rate=config.muon_learning_rate,
                    momentum=MOMENTUM,
                    weight_decay=config.weight_decay,
                    orthogonalize=orthogonalize,
                )
            )
        self._rates = [[group["lr"] for group in part.param_groups] for part in self._parts]

    def set_rate(self, share: float) -> None:
        """Set every learning rate to its configured value times `share`."""
        for part, rates in zip(self._parts, self._rates, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * share

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def clip_gradients(self, limit: float) -> dict[str, Tensor]:
        """Clip the gradients of actor and critics to this norm each; returns the norms before clipping."""
        clip = torch.nn.utils.clip_grad_norm_
        norms = {"grad_norm": clip(self._actor_parameters, limit)}
        if any(parameter.grad is not None for parameter in self._critic_parameters):
            norms["grad_norm/critic"] = clip(self._critic_parameters, limit)
        return {name: norm.detach() for name, norm in norms.items()}

    def step(self, *, moves_actor: bool = True) -> None:
        """Apply the gradients; without `moves_actor` those of the critics alone.

        A gradient of zeros would not do: weight decay moves a weight that has one.
        """
        if not moves_actor:
            for parameter in self._actor_parameters:
                parameter.grad = None
        for parameter, original in self._originals.values():
            original.grad = None if parameter.grad is None else parameter.grad.float()
        self._adopt_what_was_written()
        for part in self._parts:
            part.step()
        if self._originals:
            with torch.no_grad():
                torch._foreach_copy_(*self._list_originals())
            for _, original in self._originals.values():
                original.grad = None

    @torch.no_grad()
    def _adopt_what_was_written(self) -> None:
        if not self._originals:
            return
        parameters, originals = self._list_originals()
        rounded = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(rounded, originals)
        gaps = torch._foreach_norm(torch._foreach_sub(rounded, parameters), float("inf"))
        if not bool((torch.stack(list(gaps)) != 0).any()):  # (NaN is not 0)
            return
        for parameter, original in zip(parameters, originals, strict=True):
            is_same = original.to(parameter.dtype) == parameter
            original.copy_(torch.where(is_same, original, parameter.float()))

    def _list_originals(self) -> tuple[list[Tensor], list[Tensor]]:
        """The 16-bit parameters, and the original of each."""
        pairs = list(self._originals.values())
        return [parameter for parameter, _ in pairs], [original for _, original in pairs]

    def are_weights_finite(self) -> bool:
        """Whether all trained weights are finite."""
        norms = torch._foreach_norm(list[Tensor](self.parameters))
        return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())

    # --- by name ------------------------------------------------------------------------

    def read_named_state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as `NAME:exp_avg`, by the names of the parameters."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            for part in self._parts:
                for key, value in part.state.get(parameter, {}).items():
                    found[f"{name}:{key}"] = value
            if self._is_original(name):
                found[f"{name}:{ORIGINAL}"] = parameter.detach()
        return found

    @torch.no_grad()
    def load_named_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `read_named_state` gave."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for label, value in state.items():
            name, _, key = label.rpartition(":")
            by_name.setdefault(name, {})[key] = value
        if missing := sorted(by_name.keys() - self._named.keys()):
            raise WeightsError(
                f"the checkpoint holds optimizer states of {len(missing)} weights that this run does not "
                f"train (first: {missing[0]}); policy and critic must not change on resume"
            )
        for part in self._parts:
            for group in part.param_groups:
                is_on_device = bool(group.get("fused") or group.get("capturable"))
                for parameter in group["params"]:
                    own = by_name.get(self._names[id(parameter)], {})
                    original = own.pop(ORIGINAL, None)
                    if original is not None:
                        parameter.copy_(original)
                    part.state.pop(parameter, None)
                    if own and isinstance(part, CompactAdamW):
                        part.load_moments(parameter, own)
                        continue
                    for key, value in own.items():
                        place = parameter.device if key != "step" or is_on_device else torch.device("cpu")
                        part.state[parameter][key] = value.to(place, copy=True)

    def _is_original(self, name: str) -> bool:
        return bool(self._originals) and any(p is self._named[name] for _, p in self._originals.values())

    def state_dict(self) -> list[dict[str, Any]]:
        """Everything needed to go on."""
        states = [part.state_dict() for part in self._parts]
        originals = {str(i): original.detach() for i, (_, original) in enumerate(self._originals.values())}
        return [*states, originals] if originals else states

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on from a saved state of an optimizer of the same kind."""
        needed = len(self._parts) + bool(self._originals)
        if len(states) != needed or (self._originals and len(states[-1]) != len(self._originals)):
            raise WeightsError(
                f"the checkpoint holds {len(states)} optimizer states, this run needs {needed}; "
                "train.optimizer.kind must not change on resume, nor policy.dtype"
            )
        for part, state in zip(self._parts, states, strict=False):
            part.load_state_dict(state)
        with torch.no_grad():
            for i, (_, original) in enumerate(self._originals.values()):
                original.copy_(states[-1][str(i)])


def _make_adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW with its moments where the settings want them."""
    given: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (_BETA1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.state != "full":
        return CompactAdamW(groups, HostMoments() if config.state == "offload" else ByteMoments(), **given)
    is_fused = all(p.is_cuda for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, fused=True if is_fused else None, **given)


def _group_by_role(
    named: list[tuple[str, nn.Parameter]], rate: float, critic_rate: float | None
) -> list[dict[str, Any]]:
    """Parameter groups: of the actor, of the critics; empty ones are left out."""
    actor = [p for n, p in named if not is_critic_name(n)]
    critic = [p for n, p in named if is_critic_name(n)]
    groups = [
        {"params": actor, "lr": rate},
        {"params": critic, "lr": rate if critic_rate is None else critic_rate},
    ]
    return [group for group in groups if group["params"]]


@contextmanager
def explain_nan(place: str, advice: str) -> Iterator[None]:
    """Turn errors about NaN and infinity into a `DivergenceError` with place and advice."""
    try:
        yield
    except InputError as error:
        if not any(word in str(error) for word in ("NaN", "finite")):
            raise
        raise DivergenceError(f"{place}: {error}. This step was not taken. {advice}") from error


def rate_share(
    update: int, *, num_updates: int, schedule: str, warmup: int, final: float, start: int = 0
) -> float:
    """The learning rate of an update (from 0) as a share of the configured one.

    With update `start` the schedule begins again: weights that learn only from then on have no moments in
    AdamW, whose first steps are full ones however small the gradient is.

    >>> [round(rate_share(u, num_updates=5, schedule="linear", warmup=0, final=0.2), 2) for u in range(5)]
    [1.0, 0.8, 0.6, 0.4, 0.2]
    """
    if update >= start:
        update, num_updates = update - start, num_updates - start
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    length = max(num_updates - warmup - 1, 1)
    done = min((update - warmup) / length, 1.0)
    shape = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return final + (1.0 - final) * shape


def is_critic_name(name: str) -> bool:
    """Whether a weight of a policy belongs to one of its critics."""
    return name.startswith(("critic.", "instruction_critic."))


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not any(word in name for word in ("embed", "lm_head", "critic.head"))
