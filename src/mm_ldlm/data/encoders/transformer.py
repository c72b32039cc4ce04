"""Run local encoders: tokenizer, bare transformer and pooling on length-sorted batches, or sentence-transformers.

B sentences, L tokens, d dimensions.
"""

import contextlib
import copy
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mm_ldlm.core import EncoderError, Registry, reason_of
from mm_ldlm.data.encoders.base import Encoder
from mm_ldlm.data.encoders.specs import EncoderSpec, LocatedWeights, Pooling
from mm_ldlm.data.inference_batches import batches_by_length, lanes_of, side_by_side
from mm_ldlm.distributed.device import choose_device, threads_of
from mm_ldlm.models.defaults import plain_defaults

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
"""Indices (b,), token ids (b, L) int64 padded, and valid (b, L) bool or None when nothing is padded."""
WINDOW = 4096
"""Number of sentences that `encode` tokenises and sorts together."""
ENCODER_MODELS = Registry("model of an encoder", {}, group="encoder_models")
"""Functions of a `LocatedWeights` that return its tokenizer and model as transformers would, or None for others"""


class _LocalEncoder(Encoder):
    """An `Encoder` with a tokenizer, to whose ids it appends the token `_final_id`, if there is one."""

    tokenizer: Any
    spec: EncoderSpec
    _final_id: int | None = None

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        texts = [self.spec.prompt + sentence for sentence in sentences]
        ids = self._counter(texts, truncation=False, verbose=False)["input_ids"]
        return [len(row) + (self._final_id is not None) for row in ids]

    @functools.cached_property
    def _counter(self) -> Any:
        """A tokenizer that does nothing else: whether it truncates is a state of it, and other threads encode."""
        return copy.deepcopy(self.tokenizer)


class TransformerEncoder(_LocalEncoder):
    """An `Encoder` that consists of tokenizer, transformer and pooling."""

    def __init__(self, located: LocatedWeights, *, device: str, batch_tokens: int, batch_rows: int) -> None:
        super().__init__(located)
        self.spec = located.spec
        self.batch_tokens, self.batch_rows = batch_tokens, batch_rows
        self.device = choose_device(device)
        self.tokenizer, model = _load(located)
        self.model = pack_linear_layers(model.to(self.device))
        self.lanes, self.threads = lanes_of(self.device), threads_of(self.model)
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            raise EncoderError(
                f"encoder {located.spec.name!r}: its tokenizer has no padding token. Add one to its files."
            )
        self._final_id = self._missing_final_token()
        self.dim = int(located.truncate_dim or self.model.config.hidden_size)
        self.max_length = self.spec.max_length

    def tokenise(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return ids with prompt and special tokens, truncated to the spec's maximum."""
        texts = [self.spec.prompt + sentence for sentence in sentences]
        room = self.spec.max_length - (self._final_id is not None)
        ids: list[list[int]] = self.tokenizer(
            texts,
            truncation=True,
            max_length=room,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        if self._final_id is not None:
            ids = [[*row, self._final_id] for row in ids]
        return ids

    def prepare(self, sentences: Sequence[str]) -> list[Batch]:
        """Tokenise the sentences on the host, and batch them by length."""
        ids = self.tokenise(sentences) if sentences else []
        lengths = [len(row) for row in ids]
        batches = []
        for chosen in batches_by_length(lengths, max_tokens=self.batch_tokens, max_rows=self.batch_rows):
            count = np.array([lengths[index] for index in chosen])
            padded = np.full((len(chosen), max(int(count.max()), 1)), self.pad_id, np.int64)
            place = np.arange(padded.shape[1])
            if self.spec.padding_side == "left":
                valid = place >= padded.shape[1] - count[:, None]
            else:
                valid = place < count[:, None]
            padded[valid] = np.concatenate([ids[index] for index in chosen])
            batches.append((chosen, padded, None if valid.all() else valid))
        return batches

    @torch.inference_mode()
    def run(self, prepared: list[Batch]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        out = np.empty((sum(len(chosen) for chosen, _, _ in prepared), self.dim), np.float32)

        def forward(batch: Batch) -> None:
            chosen, ids_BL, valid_BL = batch
            out[chosen] = self.forward(torch.from_numpy(ids_BL), valid_BL).cpu().numpy()

        with plain_defaults(self.threads):
            list(side_by_side(forward, prepared, lanes=self.lanes))
        return out

    def forward(self, ids_BL: torch.Tensor, valid_BL: npt.NDArray[np.bool_] | None) -> torch.Tensor:
        """Return (B, d) float32 on the device."""
        hidden_BLd, mask_BL = self.hidden(ids_BL, valid_BL)
        vectors_Bd = pool(hidden_BLd, mask_BL, how=self.spec.pooling)[:, : self.dim]
        return torch.nn.functional.normalize(vectors_Bd, dim=-1) if self.spec.normalised else vectors_Bd

    def hidden(self, ids_BL: torch.Tensor, valid_BL: npt.NDArray[np.bool_] | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states (B, L, d) and the mask (B, L) of the tokens that are not padding."""
        ids_BL = ids_BL.to(self.device)
        extra: dict[str, Any] = {}
        if valid_BL is None:
            mask_BL = torch.ones_like(ids_BL, dtype=torch.bool)
        else:
            mask_BL = torch.from_numpy(valid_BL).to(self.device)
            extra["attention_mask"] = mask_BL.long()
            if self.spec.padding_side == "left":  # positions count from the first real token
                extra["position_ids"] = (mask_BL.long().cumsum(1) - 1).clamp(min=0)
        return self.model(input_ids=ids_BL, **extra).last_hidden_state, mask_BL

    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in order; at most `WINDOW` sentences are batched together."""
        windows = [sentences[start : start + WINDOW] for start in range(0, max(len(sentences), 1), WINDOW)]
        return np.concatenate([self.run(self.prepare(window)) for window in windows])

    def _missing_final_token(self) -> int | None:
        """Return the id of the spec's final token if the tokenizer does not append it itself."""
        token = self.spec.final_token
        if token is None:
            return None
        wanted = self.tokenizer.convert_tokens_to_ids(token)
        if wanted is None or wanted == self.tokenizer.unk_token_id != self.tokenizer.eos_token_id:
            raise EncoderError(
                f"encoder {self.spec.name!r}: its tokenizer has no token {token}, which its spec needs for "
                "pooling. Use the tokenizer that belongs to the weights."
            )
        return None if self.tokenizer("a")["input_ids"][-1:] == [wanted] else int(wanted)


class SentenceTransformersEncoder(_LocalEncoder):
    """An `Encoder` that sentence-transformers runs. It tokenises inside `run`."""

    def __init__(self, located: LocatedWeights, *, device: str, max_length: int | None, batch_rows: int) -> None:
        from sentence_transformers import SentenceTransformer

        super().__init__(located)
        self.spec, self.batch_rows = located.spec, batch_rows
        with _loading(located):
            self.model = SentenceTransformer(
                str(located.folder),
                device=str(choose_device(device)),
                local_files_only=True,
                trust_remote_code=False,
                truncate_dim=located.truncate_dim,
                model_kwargs={"dtype": getattr(torch, located.dtype)},
            )
        if max_length is not None:
            self.model.max_seq_length = min(max_length, self.model.max_seq_length or max_length)
        self.dim = int(self.encode(["dim"]).shape[1])
        self.max_length, self.tokenizer = self.model.max_seq_length, self.model.tokenizer

    def run(self, prepared: list[str]) -> npt.NDArray[np.float32]:
        """Return (n, d) float32 in the order of the sentences."""
        if not prepared:
            return np.empty((0, self.dim), np.float32)
        found = self.model.encode(
            prepared,
            prompt=self.spec.prompt or None,
            batch_size=self.batch_rows,
            normalize_embeddings=self.spec.normalised,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return np.asarray(found, np.float32)


def pool(hidden_BLd: torch.Tensor, valid_BL: torch.Tensor, *, how: Pooling) -> torch.Tensor:
    """Pool to (B, d) in float32; padding is ignored on either side."""
    hidden_BLd = hidden_BLd.float()
    if how == "mean":
        weight_BL1 = valid_BL.unsqueeze(-1).to(hidden_BLd.dtype)
        return (hidden_BLd * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)
    first_B, last_B = valid_BL.int().argmax(1), valid_BL.shape[1] - 1 - valid_BL.flip(1).int().argmax(1)
    position_B = first_B if how == "cls" else last_B
    return hidden_BLd[torch.arange(len(hidden_BLd), device=hidden_BLd.device), position_B]


def _load(located: LocatedWeights) -> tuple[Any, Any]:
    """Load tokenizer and model, by the first of `ENCODER_MODELS` that reads them, or by transformers."""
    spec, dtype = located.spec, getattr(torch, located.dtype)
    with _loading(located), contextlib.suppress(KeyError):  # of weights with older names, which transformers reads
        for name in ENCODER_MODELS:
            if (found := ENCODER_MODELS.load(name)(located)) is not None:
                return cast(tuple[Any, Any], found)
    from transformers import AutoModel, AutoTokenizer, T5EncoderModel
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

    classes: dict[str, Any] = {"auto": AutoModel, "t5_encoder": T5EncoderModel, "m2m100_encoder": M2M100Encoder}
    given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    extra = {"src_lang": spec.language} if spec.language else {}
    with _loading(located):
        tokenizer = AutoTokenizer.from_pretrained(located.folder, use_fast=True, **given, **extra)
        model, report = classes[spec.architecture].from_pretrained(
            located.folder, dtype=dtype, output_loading_info=True, **given
        )
    # Sentence encoders like BERT neither use nor contain the weights of the pooler, which the class has.
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        raise EncoderError(
            f"encoder {located.spec.name!r}: {len(missing)} weights are missing from {located.folder} (first: "
            f"{missing[0]}); they would be random. The folder contains another architecture or is damaged: fetch the "
            "model again."
        )
    return tokenizer, model.eval().requires_grad_(False)


@contextlib.contextmanager
def _loading(located: LocatedWeights) -> Iterator[None]:
    """Raise EncoderError for files that cannot be loaded, and silence the bar and the table of unused weights."""
    from safetensors import SafetensorError

    if (logging := sys.modules.get("transformers.utils.logging")) is not None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError, SafetensorError) as error:
        raise EncoderError(
            f"encoder {located.spec.name!r}: the model in {located.folder} cannot be loaded ({reason_of(error)}). "
            "Fetch it again, or set encoder.path to another folder."
        ) from error


# -- linear layers on the CPU ------------------------------------------------------------------------------------------

_TYPICAL_ROWS = 1024  # tokens in a typical batch; the layout is chosen for this number and works for any


class PackedLinear(nn.Module):
    """`nn.Linear` for float32 inference on the CPU, by oneDNN with a prepacked weight: the same sums, faster."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = getattr(linear, "activation", "none")
        self.weight = torch.empty(0, dtype=linear.weight.dtype)  # some architectures read the dtype of a layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.activation, [], "none")


@torch.no_grad()
def pack_linear_layers(model: Any) -> Any:
    """Replace every linear layer of a float32 CPU model where this build of torch supports it; else do nothing."""
    parameters = list(model.parameters())
    on_cpu = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
    if not (on_cpu and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return model
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear or (isinstance(child, nn.Linear) and hasattr(child, "activation")):
                setattr(module, name, PackedLinear(child))
    return model
