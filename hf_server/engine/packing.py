"""Linear layers on the CPU: their weights laid out once as the processor reads them, not in each pass.

A pass over a few rows, one token of each running answer, takes as long as it takes to read the weights.
As they come from a checkpoint, every pass would copy them into the order that the multiplication wants;
packed by oneDNN once, two cores make the product for eight rows in less than half the time. Layers that read
the same input (queries, keys and values; gate and up) are multiplied as one: each multiplication begins and
ends with the threads waiting for each other.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hf_server import log, memory

T = TypeVar("T")

_ROWS = 8  # how many the layout is chosen for; one and three hundred lose nothing by it

_Misfit = (RuntimeError, AttributeError, TypeError)


class PackedLinear(nn.Module):
    """A linear layer that takes the place of `linear`, with the same numbers in another order."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """float [..., in] to float [..., out]."""
        made: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            hidden, self.weight, self.bias, "none", [], ""
        )
        return made

    def unpacked(self) -> nn.Linear:
        """The layer as it was."""
        return _linear(self.weight.to_dense(), self.bias)


class Siblings:
    """Layers that read the same input, as one. Used by one thread.

    Args:
        linears: in the order in which the model calls them.
    """

    def __init__(self, linears: Sequence[nn.Linear]):
        self._sizes = [linear.out_features for linear in linears]
        whole = _linear(
            torch.cat([linear.weight.detach() for linear in linears]),
            None if linears[0].bias is None else nn.Parameter(torch.cat([linear.bias for linear in linears])),
        )
        self._packed = PackedLinear(whole)
        self._input: Tensor | None = None
        self._outputs: list[Tensor | None] = []

    def output(self, place: int, hidden: Tensor) -> Tensor:
        """What the layer at `place` makes of `hidden`; the others get theirs made along with it."""
        made = self._outputs[place] if hidden is self._input else None
        if made is None:
            self._input = hidden
            self._outputs = list(torch.split(self._packed(hidden), self._sizes, dim=-1))
            made = self._outputs[place]
            assert made is not None
        self._outputs[place] = None
        if not any(output is not None for output in self._outputs):
            self._input = None
        return made

    def unpacked(self, place: int) -> nn.Linear:
        """The layer at `place` as it was."""
        weight = torch.split(self._packed.weight.to_dense(), self._sizes)[place].clone()
        bias = self._packed.bias
        own = None if bias is None else nn.Parameter(torch.split(bias, self._sizes)[place].clone())
        return _linear(weight, own)


class SiblingLinear(nn.Module):
    """A linear layer that takes the place of one of several siblings."""

    def __init__(self, siblings: Siblings, place: int):
        super().__init__()
        self._siblings = siblings
        self._place = place

    def forward(self, hidden: Tensor) -> Tensor:
        """float [..., in] to float [..., out]."""
        return self._siblings.output(self._place, hidden)

    def unpacked(self) -> nn.Linear:
        """The layer as it was."""
        return self._siblings.unpacked(self._place)


def packed_if_possible(model: Any, try_out: Callable[[], T]) -> T:
    """The result of `try_out`, for which the model's layers are packed where it runs on a CPU.

    Some models read the weights of their layers by themselves (Mamba, DeBERTa); they are left as they were.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_onednn and model.device.type == "cpu" and model.dtype == torch.float32:
        families = _families(model, try_out)
        try:
            _pack(model, families)
            return try_out()
        except _Misfit as error:
            log.event("packing", used=False, reason=f"{type(error).__name__}: {error}")
            _replace(model, (PackedLinear, SiblingLinear), lambda packed: packed.unpacked())
    return try_out()


def _families(model: nn.Module, try_out: Callable[[], object]) -> list[list[nn.Linear]]:
    """Layers of one module that read the same input while it is tried out, in the order of their calls."""
    calls: dict[nn.Linear, tuple[nn.Module, Tensor]] = {}  # the tensors are kept, or another took their id
    hooks = []
    for parent in model.modules():
        for child in parent.children():
            if type(child) is nn.Linear:
                note = partial(_note, calls, parent)
                hooks.append(child.register_forward_pre_hook(note))
    try:
        try_out()
    finally:
        for hook in hooks:
            hook.remove()
    families: dict[tuple[int, int, bool], list[nn.Linear]] = {}
    for linear, (parent, hidden) in calls.items():
        families.setdefault((id(parent), id(hidden), linear.bias is None), []).append(linear)
    return [family for family in families.values() if len(family) > 1]


def _note(
    calls: dict[nn.Linear, tuple[nn.Module, Tensor]],
    parent: nn.Module,
    linear: nn.Linear,
    arguments: tuple[Tensor, ...],
) -> None:
    calls.setdefault(linear, (parent, arguments[0]))


def _pack(model: nn.Module, families: Sequence[Sequence[nn.Linear]]) -> None:
    """Pack every layer but those that share their weights, as an output layer does with the embeddings."""
    held = Counter(p.data_ptr() for module in model.modules() for p in module.parameters(recurse=False))

    def can_pack(linear: nn.Linear) -> bool:
        return held[linear.weight.data_ptr()] == 1 and linear.weight.is_contiguous()

    siblings: dict[nn.Linear, SiblingLinear] = {}
    for family in families:
        if all(map(can_pack, family)):
            together = Siblings(family)
            siblings |= {linear: SiblingLinear(together, place) for place, linear in enumerate(family)}
            for linear in family:
                _let_go(linear.weight)

    def packed(linear: nn.Linear) -> nn.Module:
        if linear in siblings:
            return siblings[linear]
        if not can_pack(linear):
            return linear
        made = PackedLinear(linear)
        _let_go(linear.weight)
        return made

    _replace(model, (nn.Linear,), packed)


def _linear(weight: Tensor, bias: nn.Parameter | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.bias = bias  # type: ignore[assignment]
    return linear


def _let_go(weight: Tensor) -> None:
    """Give back the memory of a weight that nobody reads any more.

    Weights lie in mapped files, which stay in memory as a whole until the last of their tensors is gone.
    """
    if weight.untyped_storage().nbytes() == weight.nbytes:  # else it is a part of something
        memory.let_go(weight.data_ptr(), weight.nbytes)


def _replace(model: nn.Module, kinds: Collection[type[nn.Module]], made: Callable[..., nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in kinds:  # a subclass may do more than multiply
                setattr(parent, name, made(child))
