"""Tiny models with random weights, made on the spot; no hub is asked."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPImageProcessor,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
VISION_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "<assistant>"
)
KEY = "test-key"
LABELS = ("negative", "neutral", "positive")
CONTEXT = 512


def make_tokenizer(
    *, template: str | None = TEMPLATE, extra: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """Bytes and a few common words; any text can be encoded and comes back the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world, the quick brown fox jumps over the lazy dog"] * 3, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    made.add_special_tokens({"additional_special_tokens": list(extra)})
    made.chat_template = template
    return made


def sizes(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """What the configs of most text models call the same."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def save_causal(folder: Path, *, template: str | None = TEMPLATE, seed: int = 0) -> Path:
    tokenizer = make_tokenizer(template=template)
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**sizes(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_architecture(folder: Path, name: str) -> Path:
    """A causal model that is not a Llama: `sliding`, `positions` or `recurrent`."""
    tokenizer = make_tokenizer()
    shape = sizes(tokenizer)
    torch.manual_seed(3)
    match name:
        case "sliding":
            model = MistralForCausalLM(MistralConfig(**shape, sliding_window=8))
        case "positions":
            names = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
            common = {key: shape[key] for key in names}
            model = GPT2LMHeadModel(GPT2Config(**common, n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT))
        case "recurrent":
            model = Lfm2ForCausalLM(Lfm2Config(**shape, layer_types=["conv", "full_attention"]))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_classifier(folder: Path, **config: object) -> Path:
    tokenizer = make_tokenizer(template=None)
    torch.manual_seed(1)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
        "id2label": dict(enumerate(LABELS)),
    }
    BertForSequenceClassification(BertConfig(**{**shape, **config})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_vision(folder: Path) -> Path:
    tokenizer = make_tokenizer(template=None, extra=("<image>",))
    torch.manual_seed(2)
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**sizes(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VISION_TEMPLATE,
    ).save_pretrained(folder)
    return folder
