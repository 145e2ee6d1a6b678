"""A GGUF of 100 KB that a real llama-server loads at once: random weights, so its answers are noise."""

from pathlib import Path

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, FORWARD, CONTEXT = 32, 1, 2, 64, 8192
SPECIAL = ("<unk>", "<s>", "</s>")
BEGIN, END = 1, 2


def write_tiny_gguf(path: Path) -> Path:
    """A llama with a token for each byte, written to `path`."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.CONTROL,
        *[gguf.TokenType.BYTE] * 256,
    ]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    random = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, noise(*shape))

    def noise(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.1).astype(np.float32)

    # One number of every hidden state is large, and speaks for the end: answers have some twenty tokens.
    embedding, output = noise(len(tokens), WIDTH), noise(len(tokens), WIDTH)
    embedding[:, 0], output[:, 0], output[END, 0] = 3.0, 0.0, 0.35
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"{block}.{name}.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"{block}.{name}.weight", WIDTH, WIDTH)
        tensor(f"{block}.ffn_gate.weight", FORWARD, WIDTH)
        tensor(f"{block}.ffn_up.weight", FORWARD, WIDTH)
        tensor(f"{block}.ffn_down.weight", WIDTH, FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
