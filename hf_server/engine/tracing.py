"""Passes of a small encoder without the Python interpreter between its operations.

A pass of MiniLM over a few texts is some four hundred operations of microseconds each. After each, its thread
waits for the interpreter, which the request threads hold: on two cores under 32 clients that cost a third
of the texts a second. A recorded pass takes the interpreter once. A recording repeats what the model did
with its examples, so it is used for widths that were tried, where it does what the model does.
"""

import time
import warnings

import torch

from hf_server import log
from hf_server.engine.encoder import Encoder

MOST_TOKENS = 512  # of a text; of longer ones the operations take much longer than the waits
WORTH_IT_S = 0.1  # a model whose short pass takes longer waits little in proportion
_Unfit = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError)


def trace_if_same(encoder: Encoder, max_tokens: int, worth_it_s: float = WORTH_IT_S) -> None:
    """Let the encoder use a recording of its passes, if that gives the same vectors, and is worth it.

    Args:
        worth_it_s: longest short pass of a model that is recorded.
    """
    width = min(MOST_TOKENS, max_tokens)
    several = 5 if encoder.can_pad else 3
    lengths = [[1], [3, several], [3] * 8, [40, 40], [width]]
    examples = [encoder.padded([_text(length) for length in texts]) for texts in lengths]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the comparison finds what a recording can't follow
        short = examples[1]
        encoder.vectors(*short)
        begun = time.monotonic()
        encoder.vectors(*short)
        if time.monotonic() - begun > worth_it_s:
            return
        try:
            traced = torch.jit.trace(encoder.vectors, short, check_trace=False)  # type: ignore[no-untyped-call]
            recorded = torch.jit.freeze(traced)
            # Twice: its first calls are still made as they were recorded, later ones optimized.
            if all(_same(recorded(*one), encoder.vectors(*one)) for one in [*examples, *examples]):
                encoder.use(recorded, width)
                return
            reason = "it gives other vectors"
        except _Unfit as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    log.event("tracing", used=False, reason=reason)


def _text(length: int) -> list[int]:
    return [2 + place % 5 for place in range(length)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)
