"""From options to a running engine: load, warm up, start the thread that owns the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoProcessor,
    AutoTokenizer,
)

from hf_server import log, memory
from hf_server.engine import checkpoint
from hf_server.engine.batcher import Batcher
from hf_server.engine.encoder import Classifier, Embedder, Encoder
from hf_server.engine.language import LanguageModel
from hf_server.engine.packing import packed_if_possible
from hf_server.engine.prompts import TextPrompts, VisionPrompts
from hf_server.engine.scheduler import Scheduler
from hf_server.engine.tracing import trace_if_same
from hf_server.engines import Engine, GeneratingEngine, Prompts, VectorEngine
from hf_server.errors import StartFailed
from hf_server.generation import Prompt
from hf_server.metrics import Metrics
from hf_server.options import Options

_CPU_PASS_TOKENS = 1024  # of an embedding pass; more gain nothing on CPU
_GPU_PASS_TOKENS = 32768
_CPU_LANES = 4  # at most, where there are as many cores
_MEMORY_SHARE = 0.6  # of what is free once the weights are loaded, for keys and values

OnStage = Callable[[str], None]


def start(options: Options, metrics: Metrics, on_stage: OnStage) -> Engine:
    """A running engine that has passed a warm-up call.

    Args:
        on_stage: called with `loading` and `warming up`.

    Raises:
        StartFailed: naming the cause.
    """
    on_stage("loading")
    checkpoint.quiet()
    checkpoint.choose_device(options.device)  # says at once that a device is missing
    checkpoint.find(options)
    config = checkpoint.load_config(options)
    match options.model_type:
        case "causal":
            return _start_causal(options, config, metrics, on_stage)
        case "vision":
            return _start_vision(options, config, metrics, on_stage)
        case "embedding":
            return _start_embedding(options, config, metrics, on_stage)
        case "classification":
            return _start_classification(options, config, metrics, on_stage)


def _start_causal(options: Options, config: Any, metrics: Metrics, on_stage: OnStage) -> Engine:
    tokenizer = _load(AutoTokenizer, options)
    model = checkpoint.load_model(AutoModelForCausalLM, config, options)
    context = _context(options, config)
    prompts = TextPrompts(tokenizer, context)
    return _generating(options, model, tokenizer, prompts, context, metrics, on_stage)


def _start_vision(options: Options, config: Any, metrics: Metrics, on_stage: OnStage) -> Engine:
    processor = _load(AutoProcessor, options)
    if not hasattr(processor, "image_processor"):
        raise StartFailed(f"{options.model_id} has no image processor; it is not a vision model")
    model = checkpoint.load_model(AutoModelForImageTextToText, config, options)
    context = _context(options, config)
    prompts = VisionPrompts(processor, context)
    return _generating(options, model, processor.tokenizer, prompts, context, metrics, on_stage)


def _start_embedding(options: Options, config: Any, metrics: Metrics, on_stage: OnStage) -> Engine:
    tokenizer = _load(AutoTokenizer, options)
    model = checkpoint.load_model(AutoModel, config, options, may_miss=lambda name: "pooler" in name)
    if config.is_encoder_decoder:
        model = model.get_encoder()
    return _encoding(options, Embedder(model), tokenizer, (), metrics, on_stage)


def _start_classification(options: Options, config: Any, metrics: Metrics, on_stage: OnStage) -> Engine:
    tokenizer = _load(AutoTokenizer, options)
    model = checkpoint.load_model(AutoModelForSequenceClassification, config, options)
    labels = options.labels or tuple(str(config.id2label[place]) for place in range(config.num_labels))
    if len(labels) != config.num_labels:
        raise StartFailed(
            f"labels names {len(labels)} classes, but {options.model_id} has {config.num_labels}; "
            "give one name for each class, in the model's order"
        )
    return _encoding(options, Classifier(model), tokenizer, labels, metrics, on_stage)


def _generating(
    options: Options,
    model: Any,
    tokenizer: Any,
    prompts: Prompts,
    context: int,
    metrics: Metrics,
    on_stage: OnStage,
) -> GeneratingEngine:
    on_stage("warming up")
    language = LanguageModel(model, _end_tokens(model, tokenizer), context)
    try_out = partial(packed_if_possible, model, partial(_try_out, language, tokenizer))
    layers, token_bytes = checkpoint.explained(try_out, options)
    memory.give_back()
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    kv_tokens = options.kv_tokens or _kv_tokens(language.device, token_bytes, options.max_batch * context)
    scheduler = Scheduler(
        language,
        decode,
        layers=layers,
        kv_tokens=kv_tokens,
        max_batch=options.max_batch,
        max_queue=options.max_queue,
        metrics=metrics,
    )
    scheduler.start()
    log.event("engine", context=context, kv_tokens=kv_tokens, shared_passes=language.can_share)
    return GeneratingEngine(prompts, scheduler, decode, context, options.max_batch, str(language.device))


def _encoding(
    options: Options,
    vectors: Embedder | Classifier,
    tokenizer: Any,
    labels: tuple[str, ...],
    metrics: Metrics,
    on_stage: OnStage,
) -> VectorEngine:
    on_stage("warming up")
    model, encoder = vectors.model, Encoder(vectors, tokenizer)
    with torch.inference_mode():
        ids = tokenizer("warm up")["input_ids"]
        checkpoint.explained(lambda: encoder.encode([ids, ids]), options)
    max_tokens = min(options.max_length, _positions(model), tokenizer.model_max_length)
    on_cpu = model.device.type == "cpu"
    in_lanes = on_cpu and _is_unchanging(model, options)
    if in_lanes:
        trace_if_same(encoder, max_tokens)
        memory.give_back()
    batcher = Batcher(
        encoder,
        lanes=min(_CPU_LANES, torch.get_num_threads()) if in_lanes else 1,
        pass_tokens=_CPU_PASS_TOKENS if on_cpu else _GPU_PASS_TOKENS,
        max_queue=options.max_queue,
        metrics=metrics,
    )
    batcher.start()
    return VectorEngine(tokenizer, batcher, max_tokens, labels, str(model.device))


def _is_unchanging(model: Any, options: Options) -> bool:
    """True when passes leave no trace in the model, so that several threads may use it at once.

    Rotary positions that stretch with the text are computed anew within a pass, and kept in the model.
    """
    kinds = {getattr(module, "rope_type", None) for module in model.modules()}
    return not options.trust_remote_code and not any(
        kind == "longrope" or (isinstance(kind, str) and "dynamic" in kind) for kind in kinds
    )


def _load(auto_class: Any, options: Options) -> Any:
    arguments = checkpoint.source(options)
    return checkpoint.explained(lambda: auto_class.from_pretrained(options.model_id, **arguments), options)


def _context(options: Options, config: Any) -> int:
    """Most tokens of a prompt and its answer: what was asked for, as far as the model was made for it."""
    made_for = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if made_for and made_for < options.max_length:
        log.event("context", asked=options.max_length, used=made_for, reason="the model was made for no more")
        return int(made_for)
    return options.max_length


def _positions(model: Any) -> int:
    """How many tokens an encoder has positions for."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        # RoBERTa and its kin count positions from behind the padding's.
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an answer, by the generation config, the config or the tokenizer."""
    found: set[int] = set()
    text_config = model.config.get_text_config(decoder=True)
    for value in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(text_config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
    return frozenset(found)


def _try_out(model: LanguageModel, tokenizer: Any) -> tuple[int, int]:
    """Run a prompt and one more token; returns the cache's layers and its bytes for each token."""
    ids = tokenizer("warm up")["input_ids"] or [0]
    cache = model.new_cache()
    with torch.inference_mode():
        model.prefill(Prompt(ids), 0, len(ids), cache)
        model.prefill(Prompt([*ids, ids[0]]), len(ids), len(ids) + 1, cache)
    if not model.can_share:
        return 0, 1
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return len(cache.layers), sum(t.numel() * t.element_size() for t in tensors) // (len(ids) + 1)


def _kv_tokens(device: torch.device, token_bytes: int, most: int) -> int:
    """How many tokens' keys and values there is memory for, at most as many as can be asked for."""
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else psutil.virtual_memory().available
    return max(1, min(most, int(free * _MEMORY_SHARE) // max(1, token_bytes)))
