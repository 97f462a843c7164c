"""Passes of a backbone as captured CUDA graphs: two launches in place of thousands.

A narrow model on some thousand tokens waits for the host to launch its kernels (about seventy per layer and
microbatch). Here the backbone's forward pass is captured once, its backward pass too, and both are replayed
for every microbatch that fits. Embeddings, head and loss run around them as always.

    microbatch ─► plan of its attention ─► a pass of its size ─► copy inputs ─► replay ─► copy outputs

A captured pass has fixed sizes. Tokens are rounded up and padded as everywhere on CUDA; what attention reads
of the tree (`packing/paths.py`, `packing/sequences.py`) is in arrays that have room to spare. So one pass
serves many microbatches of similar size. A size is captured when it is met for the second time.

Invariants
* What is captured is the eager pass itself: same kernels, same gradients. A new pass must agree with the
  eager one on its first microbatch, or passes stay eager, with one warning.
* All passes of a backbone share their memory, so one forward pass waits for its backward pass at a time.
  Meanwhile others run eagerly. Outputs and gradients are copies, free to keep.
* Weights are read where they were at capture. If they have moved, or are not plain tensors of one GPU and
  dtype (shards of several ranks), passes are eager.
* A replay runs no Python: hooks on modules of the backbone would be recorded, not called. With hooks (but on
  the embeddings, which stay outside), under autocast or in inference mode, passes are eager.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from stepwell.packing import paths, sequences
from stepwell.packing.kernel_inputs import PlanSize, ScoreOptions
from stepwell.packing.layout import TreeLayout
from stepwell.policies.activations import MOST_CAPTURED, count_layer_work
from stepwell.policies.forward import find_backbone, read_hidden_states
from stepwell.policies.graph_recorder import GraphRecorder, note_peak
from stepwell.policies.head import find_plain_head

_RUNS_ON = ("cuda",)
MOST_PASSES, PAYS_AFTER = 8, 4
"""Passes that are kept; and how often those must have been replayed on average before more are captured."""
_TOLERANCE = 0.03
_STEP, _SPARE = 512, 1024
"""Sizes are multiples of so many tokens; a small pass may compute so many for nothing."""
Plan = paths.PathPlan | sequences.SequencePlan


class _FixedLayout(TreeLayout):
    """Stands for every tree whose plan fits one size; only the arrays of attention can be read."""

    def __init__(self, size: PlanSize, device: torch.device) -> None:
        self.device, self.num_tokens = device, size.tokens
        is_dense = size.kind[1] == "sequences"
        self.arrays = sequences.Sequences(size, device) if is_dense else paths.Paths(size, device)
        self.cache = {"sequence plan": size if is_dense else None, "path plan": size}
        self.cache["sequences" if is_dense else "paths"] = self.arrays
        self.__dict__["max_depth"] = 0  # windows were compared with the tree's own depth


class CapturedPasses:
    """The captured passes of one backbone."""

    def __init__(self) -> None:
        _all.add(self)
        self.passes: list[_CapturedPass] = []
        self._num_seen: Counter[tuple[PlanSize, bool]] = Counter()
        self._waiting: weakref.ref[_Ticket] | None = None
        self._num_made = self._num_replayed = 0
        self._is_refused = False
        self._recorder: GraphRecorder | None = None

    @property
    def pool_bytes(self) -> int:
        """Memory that the graphs keep, besides that of tensors."""
        return 0 if self._recorder is None else self._recorder.pool_bytes

    def __reduce__(self) -> Any:
        return CapturedPasses, ()  # a copy of the backbone captures its own

    def run(self, backbone: Any, arguments: dict[str, Any]) -> Tensor | None:
        """The last hidden states [T, H] for these arguments; None: run them eagerly."""
        if self._is_refused or (self._waiting is not None and self._waiting() is not None):
            return None
        plan = _find_plan(backbone, arguments) if _runs_no_python(backbone) else None
        parameters = [] if plan is None else _list_parameters(backbone)
        if plan is None or not parameters:
            return None
        is_trained = torch.is_grad_enabled() and any(each.requires_grad for each in parameters)
        embeddings = backbone.get_input_embeddings()(arguments["input_ids"])
        captured = self._find_pass(plan, is_trained)
        if captured is None:
            captured = self._make_pass(backbone, parameters, plan, is_trained, embeddings, arguments)
        if captured is None or not captured.has_weights(parameters):
            return None
        captured.load(plan, arguments["position_ids"])
        self._num_replayed += 1
        if not is_trained:
            return captured.run_forward(embeddings.detach()[0])
        trained = [each for each in parameters if each.requires_grad]
        states: Tensor = _ReplayedPass.apply(embeddings[0], captured, self, *trained)  # type: ignore[no-untyped-call]
        return states

    def refuse_all(self) -> bool:
        """Drop every pass and its memory, and capture no more; whether anything was dropped."""
        note_peak()
        held, self._is_refused, self._recorder = len(self.passes), True, None
        self.passes.clear()
        return held > 0

    def open_ticket(self) -> _Ticket:
        """Reserve the memory of the passes until a backward pass has read it, or nobody can run it."""
        ticket = _Ticket()
        self._waiting = weakref.ref(ticket)
        return ticket

    def _find_pass(self, plan: Plan, is_trained: bool) -> _CapturedPass | None:
        for each in self.passes:
            if each.is_trained == is_trained and each.fits(plan):
                self.passes.remove(each)
                self.passes.append(each)  # the last ones were used last
                return each
        return None

    def _make_pass(
        self,
        backbone: Any,
        parameters: list[Tensor],
        plan: Plan,
        is_trained: bool,
        embeddings: Tensor,
        arguments: dict[str, Any],
    ) -> _CapturedPass | None:
        size = choose_size(plan)
        self._num_seen[size, is_trained] += 1
        is_paid = self._num_made < MOST_PASSES or self._num_replayed >= PAYS_AFTER * self._num_made
        if self._num_seen[size, is_trained] < 2 or not is_paid:
            return None
        del self.passes[: max(0, len(self.passes) - MOST_PASSES + 1)]
        try:
            self._recorder = self._recorder or GraphRecorder()
            made = _CapturedPass(size, is_trained, embeddings[0])
            made.load(plan, arguments["position_ids"])
            made.record(backbone, parameters, embeddings.detach()[0], self._recorder)
        except Exception as error:  # whatever a model does that cannot be captured: it runs as before
            self.refuse_all()
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            warnings.warn(f"training passes are not captured as CUDA graphs: {reason}", stacklevel=2)
            return None
        self.passes.append(made)
        self._num_made += 1
        return made


class _Ticket:
    """Alive as long as a forward pass waits for its backward pass."""


class _CapturedPass:
    """One size: buffers, and the graphs that read and write them."""

    def __init__(self, size: PlanSize, is_trained: bool, embeddings: Tensor) -> None:
        device, width = embeddings.device, embeddings.shape[1]
        self.size, self.is_trained = size, is_trained
        self.layout = _FixedLayout(size, device)
        self._rows = embeddings.new_zeros(1, size.tokens, width)
        self._pulls = torch.zeros_like(self._rows[0])
        self._states = self._rows
        self._grads: list[Tensor | None] = []
        self._positions = torch.zeros(1, size.tokens, dtype=torch.int64, device=device)
        self._arguments = {
            "position_ids": self._positions,
            "attention_mask": torch.ones(1, size.tokens, dtype=torch.bool, device=device),
            "tree_layout": self.layout,
            "use_cache": False,
        }

    def fits(self, plan: Plan) -> bool:
        """Whether this pass can run a plan without many more tokens."""
        own, count = self.size.tokens, plan.size.tokens
        return count <= own <= max(1.08 * count, count + _SPARE) and self.size.holds(plan.pad(own).size)

    def load(self, plan: Plan, positions: Tensor) -> None:
        """Take a microbatch's tree and positions."""
        self.layout.arrays.fill(plan.pad(self.size.tokens))  # type: ignore[arg-type]
        _copy_rows(self._positions[0], positions[0])

    def has_weights(self, parameters: list[Tensor]) -> bool:
        """Whether the weights are where they were at capture."""
        return self._addresses == _list_addresses(parameters)

    def run_forward(self, embeddings: Tensor) -> Tensor:
        _copy_rows(self._rows[0], embeddings)
        self._forward()
        return self._states[: embeddings.shape[0]].detach().clone()

    def run_backward(self, pulls: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of embeddings and trained parameters; autograd copies those, since they are held here."""
        _copy_rows(self._pulls, pulls)
        self._backward()
        row_grads, *grads = self._grads
        assert row_grads is not None
        return row_grads[0, : pulls.shape[0]].clone(), *grads

    def record(self, backbone: Any, parameters: list[Tensor], rows: Tensor, recorder: GraphRecorder) -> None:
        """Run once eagerly, record, and compare what the recorded pass gives with the eager one."""
        self._addresses = _list_addresses(parameters)
        _copy_rows(self._rows[0], rows)
        self._pulls[: rows.shape[0]].normal_()
        names = {id(each): name for name, each in backbone.named_parameters()}
        # aliases: the parameters themselves are tied to the stream on which their gradients are summed
        aliases = {names[id(p)]: p.detach().requires_grad_(p.requires_grad) for p in parameters}
        leaves = [
            self._rows.requires_grad_(self.is_trained),
            *(p for p in aliases.values() if p.requires_grad),
        ]

        def run_forward() -> None:
            with torch.set_grad_enabled(self.is_trained):
                self._states = self._run_backbone(backbone, aliases)

        def run_backward() -> None:
            if self.is_trained:
                found = torch.autograd.grad(self._states, leaves, self._pulls, allow_unused=True)
                self._states, self._grads = self._states.detach(), list(found)

        def run_both() -> None:
            run_forward()
            run_backward()

        recorder.warm_up(run_both)
        eager = self._list_results()
        self._forward = recorder.record(run_forward)
        self._backward = recorder.record(run_backward) if self.is_trained else run_backward
        self._forward()
        self._backward()
        gap = _measure_gap(self._list_results(), eager)
        if not gap <= _TOLERANCE:
            raise RuntimeError(f"a captured pass differs from the eager one by {gap:.2g}")

    def _list_results(self) -> list[list[Tensor]]:
        """The states, and all gradients."""
        grads = [each.detach() for each in self._grads if each is not None]
        return [[self._states.detach()], grads] if grads else [[self._states.detach()]]

    def _run_backbone(self, backbone: Any, weights: dict[str, Tensor]) -> Tensor:
        given = {"inputs_embeds": self._rows, **self._arguments}
        return read_hidden_states(functional_call(backbone, weights, (), given)).flatten(0, 1)


class _ReplayedPass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, captured: _CapturedPass, passes: CapturedPasses, *parameters: Tensor
    ) -> Tensor:
        ctx.captured, ctx.ticket = captured, passes.open_ticket()
        return captured.run_forward(embeddings)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, pulls: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.ticket is None:
            raise RuntimeError("a captured pass runs backward once; call the policy again")
        ctx.ticket = None
        embedding_grads, *grads = ctx.captured.run_backward(pulls)
        return embedding_grads, None, None, *grads


def install_passes(model: Any, is_wanted: bool, *, is_backbone: bool) -> None:
    """Let a model's backbone run captured passes from now on, or no longer."""
    if is_backbone or find_plain_head(model) is not None:  # otherwise its backbone is never run alone
        backbone = model if is_backbone else find_backbone(model)
        backbone.captured_passes = CapturedPasses() if is_wanted else None


_all: weakref.WeakSet[CapturedPasses] = weakref.WeakSet()


def refuse_passes() -> bool:
    """Capture no more in this process, since memory has run out; whether that frees any."""
    held = [each.refuse_all() for each in _all]
    if any(held):
        warnings.warn("memory ran out: training passes are no longer captured CUDA graphs", stacklevel=2)
    return any(held)


def choose_size(plan: Plan) -> PlanSize:
    """The size of the pass to capture for a plan: rounded up, so that it serves similar ones."""
    size = plan.pad(_round_up(plan.size.tokens, 16, _STEP)).size
    return replace(size, room=tuple(_round_up(each, 4) for each in size.room))


def _round_up(count: int, per_octave: int, least: int = 1) -> int:
    """Up to the next of so many sizes per octave, and to a multiple of `least`."""
    step = max(least, (1 << max(count - 1, 0).bit_length()) // (2 * per_octave))
    return -(-count // step) * step


def _runs_no_python(backbone: Any) -> bool:
    """Whether nothing but the layers' own work happens in a pass."""
    kind, outside = backbone.device.type, backbone.get_input_embeddings()
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(kind):
        return False
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    modules = (each for each in backbone.modules() if each is not outside)
    return not any(getattr(module, kind) for module in modules for kind in kinds)


def _find_plan(backbone: Any, arguments: dict[str, Any]) -> Plan | None:
    """How attention runs these arguments; None for what is not captured."""
    layout, config = arguments.get("tree_layout"), backbone.config.get_text_config()
    if layout is None or layout.device.type not in _RUNS_ON or arguments["position_ids"].ndim != 2:
        return None
    if backbone.is_gradient_checkpointing and torch.is_grad_enabled():
        return None
    weight, width = backbone.get_input_embeddings().weight, config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * width
    pairs = int(layout.tree.positions.sum())
    if count_layer_work(width, inner, layout.num_tokens, pairs) > MOST_CAPTURED:
        return None
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or width // heads
    query, value = (weight.new_empty(1, count, 0, size) for count in (heads, key_heads))
    window, cap = (getattr(config, name, None) for name in ("sliding_window", "attn_logit_softcapping"))
    how = ScoreOptions(1.0, window, cap)
    if sequences.supports_sequences(query, value, layout, how):
        return sequences.find_sequences(layout)
    if paths.supports_paths(query, value, layout, how):
        found: Plan = layout.cache["path plan"]
        return found
    return None


def _list_parameters(backbone: Any) -> list[Tensor]:
    """All parameters but the embeddings, which stay outside; none if there are shards or several dtypes."""
    outside, found = backbone.get_input_embeddings().weight, list(backbone.parameters())
    if {(type(each), each.device, each.dtype) for each in found} != {
        (nn.Parameter, outside.device, outside.dtype)
    }:
        return []
    return [each for each in found if each is not outside]


def _list_addresses(parameters: list[Tensor]) -> list[tuple[int, bool]]:
    return [(each.data_ptr(), each.requires_grad) for each in parameters]


def _measure_gap(ours: list[list[Tensor]], theirs: list[list[Tensor]]) -> float:
    """The largest |ours - theirs| / |theirs| of these lists of tensors."""
    gaps = []
    for found, wanted in zip(ours, theirs, strict=True):
        apart = [float((a.float() - b.float()).norm()) for a, b in zip(found, wanted, strict=True)]
        size = [float(each.float().norm()) for each in wanted]
        gaps.append(math.hypot(*apart) / math.hypot(*size))
    return max(gaps)


def _copy_rows(to: Tensor, rows: Tensor) -> None:
    """Copy the first rows of a buffer and clear the rest."""
    to[: rows.shape[0]].copy_(rows)
    to[rows.shape[0] :].zero_()
