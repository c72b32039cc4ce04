"""Small encoders with random weights, one of each architecture, saved in their published formats."""

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = """a b c d e f the cat dog sat on mat ran ! . ? it is was in house red blue green query one two three
    four""".split()  # noqa: SIM905
Build = Callable[[Path], None]


def _tokenizer(folder: Path, *, kind: str) -> None:
    """A word-level tokenizer with the special tokens and the template of the family."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {
        "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        "xlm-r": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "t5": ["<pad>", "</s>", "<unk>"],
        "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "qwen3-bare": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    }[kind]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, ":"])}
    unknown = {"bert": "[UNK]"}.get(kind, "<unk>" if "<unk>" in special else "a")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer() if kind == "bert" else normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    first, last = {"bert": ("[CLS]", "[SEP]"), "xlm-r": ("<s>", "</s>"), "t5": (None, "</s>")}.get(
        kind, (None, "<|endoftext|>")
    )
    if kind != "qwen3-bare":
        template = " ".join(part for part in (first, "$A", last) if part)
        tokens = [(token, vocabulary[token]) for token in (first, last) if token]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    named: dict[str, Any] = {
        "bert": {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"},
        "xlm-r": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        "t5": {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
    }.get(kind, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    _tokenizer(folder, kind="bert")


def xlm_r(folder: Path) -> None:
    from transformers import XLMRobertaConfig, XLMRobertaModel

    config = XLMRobertaConfig(
        vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=70, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1,
    )  # fmt: skip
    XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    _tokenizer(folder, kind="xlm-r")


def qwen3(folder: Path, *, kind: str = "qwen3") -> None:
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=48, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=48, max_position_embeddings=128, eos_token_id=2,
    )  # fmt: skip
    Qwen3Model(config).save_pretrained(folder)
    _tokenizer(folder, kind=kind)


def t5(folder: Path) -> None:
    """The whole encoder-decoder, as google/t5-v1_1-large is stored."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=48, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)
    _tokenizer(folder, kind="t5")


def sonar(folder: Path) -> None:
    from tokenizers import SentencePieceUnigramTokenizer  # noqa: F401  (the family's tokenizer needs the package whole)
    from transformers import M2M100Config, NllbTokenizer
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    letters = list("▁abcdefghijklmnopqrstuvwxyz!.?")
    vocabulary = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=[], src_lang="eng_Latn", tgt_lang="eng_Latn")
    config = M2M100Config(
        vocab_size=len(tokenizer) + 8, d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, scale_embedding=True,
    )  # fmt: skip
    M2M100Encoder(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sentence_transformers(folder: Path) -> None:
    """A folder with a module that the transformer backend does not have."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    bert(folder / "base")
    dense = Dense(32, 12, activation_function=torch.nn.Identity())
    modules = [Transformer(str(folder / "base")), Pooling(32, "mean"), dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def plain_modules(folder: Path, *modules: str, **files: Any) -> Path:
    """Describe the folder of a BERT as one of sentence-transformers, with these modules after the transformer.

    `pooling`, `settings`, `limit` and `lower` are the contents of its files.
    """
    kinds = ["Transformer", *modules]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(modules, 1))]
    for kind, path in zip(kinds, paths, strict=True):
        (folder / path).mkdir(exist_ok=True, parents=True)
        if kind == "Pooling":
            default = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
            (folder / path / "config.json").write_text(json.dumps(files.get("pooling", default)))
    listed = [{"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    if (limit := files.get("limit", 24)) is not None:
        own = {"max_seq_length": limit, "do_lower_case": files.get("lower", False)}
        (folder / "sentence_bert_config.json").write_text(json.dumps(own))
    if (settings := files.get("settings")) is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


BUILDERS: dict[str, Build] = {
    "minilm": bert, "sonar": sonar, "e5": xlm_r, "qwen3": qwen3, "t5": t5, "bge-m3": xlm_r,
    "qwen3-bare": functools.partial(qwen3, kind="qwen3-bare"), "library": sentence_transformers,
}  # fmt: skip
_built = tempfile.TemporaryDirectory(prefix="tiny-encoders-")


@functools.cache
def folder_of(name: str) -> Path:
    """Return a folder with a tiny model of the architecture of a name; do not write into it."""
    import torch

    folder = Path(_built.name) / name
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(11)
        BUILDERS[name](folder)
    return folder
