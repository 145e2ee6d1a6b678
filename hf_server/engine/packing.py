"""Linear layers on the CPU: their weights laid out once as the processor reads them, not in each pass.

A pass over a few rows, one token of each running answer, takes as long as it takes to read the weights.
As they come from a checkpoint, every pass would copy them into the order that the multiplication wants;
packed by oneDNN once, two cores make the product for eight rows in less than half the time.
"""

import ctypes
import mmap
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hf_server import log

T = TypeVar("T")

_ROWS = 8  # how many the layout is chosen for; one and three hundred lose nothing by it

_Misfit = (RuntimeError, AttributeError, TypeError)
_libc = ctypes.CDLL(None)


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
        linear = nn.Linear(self.in_features, self.out_features, device="meta")
        linear.weight = nn.Parameter(self.weight.to_dense(), requires_grad=False)
        linear.bias = self.bias
        return linear


def packed_if_possible(model: Any, try_out: Callable[[], T]) -> T:
    """The result of `try_out`, for which the model's layers are packed where it runs on a CPU.

    Some models read the weights of their layers by themselves (Mamba, DeBERTa); they are left as they were.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_onednn and model.device.type == "cpu" and model.dtype == torch.float32:
        try:
            _pack(model)
            return try_out()
        except _Misfit as error:
            log.event("packing", used=False, reason=f"{type(error).__name__}: {error}")
            _replace(model, PackedLinear, PackedLinear.unpacked)
    return try_out()


def _pack(model: nn.Module) -> None:
    """Pack every layer but those that share their weights, as an output layer does with the embeddings."""
    held = Counter(p.data_ptr() for module in model.modules() for p in module.parameters(recurse=False))

    def packed(layer: nn.Linear) -> nn.Module:
        if held[layer.weight.data_ptr()] > 1 or not layer.weight.is_contiguous():
            return layer
        made = PackedLinear(layer)
        _let_go(layer.weight)
        return made

    _replace(model, nn.Linear, packed)


def _let_go(weight: Tensor) -> None:
    """Give back the memory of a weight that nobody reads any more.

    Weights lie in mapped files, which stay in memory as a whole until the last of their tensors is gone.
    """
    if weight.untyped_storage().nbytes() != weight.nbytes:
        return  # a part of something else
    begin = -(-weight.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: others have the rest
    end = (weight.data_ptr() + weight.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _replace(model: nn.Module, kind: type[nn.Module], made: Callable[..., nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is kind:  # a subclass may do more than multiply
                setattr(parent, name, made(child))
