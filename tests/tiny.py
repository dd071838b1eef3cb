"""A tiny random Llama and its tokenizer, for tests that need a real model in a second.

`make_tiny_base(folder)` writes a Hugging Face folder of under 1 MB, the same bytes every
time: two layers of width 64, a byte-level BPE vocabulary trained on the text below, ChatML
control tokens and this project's chat template.
"""

from pathlib import Path

TEMPLATE = Path(__file__).parents[1] / "infra" / "chat_template.jinja"

_CORPUS = """
What is the weather in Paris today? It is rainy and 14 degrees. Thank you for the answer.
You are a helpful assistant. Answer with one label from: L0 L1 L2 L3. model_id=L2
Turn on the light in the kitchen. Set a timer for 10 minutes. Remind me to call at 9.
<tool_call>{"name": "set_timer", "arguments": {"minutes": 10, "room": "kitchen"}}</tool_call>
Write a function that adds two numbers. def add(a, b): return a + b
{"type": "card", "title": "Hello", "children": [{"type": "text", "value": "world"}]}
"""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_base(folder: Path, *, seed: int = 0) -> Path:
    """Write the tiny base model into `folder` and return it; another seed gives other weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).float()
    torch.random.set_rng_state(state)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tiny_tokenizer():
    """Return the tokenizer: bytes, a few hundred merges, ChatML control tokens, the template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_CORPUS.splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer
