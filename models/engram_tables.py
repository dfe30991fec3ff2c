"""Constants of the Engram hash that follow from the config: primes, offsets, multipliers and the compressed token ids.

They are computed here and never stored in a checkpoint; the released values are checked in the tests. Source:
SPEC 7.1-7.4.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers

from dsv41c.errors import CheckpointError
from dsv41c.models.primes import engram_primes

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

# A lone space must survive Strip, so it is carried through it as a private-use character.
_LONE_SPACE = "\ue000"
_NORMALIZE = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(_LONE_SPACE, " "),
    ]
)


@dataclass(frozen=True)
class EngramTables:
    """Constants of the hash for one model; columns run n-gram size first, then head (SPEC 7.4).

    token_map: int64 [vocab_size], compressed id of each token. pad: compressed id for missing and dead tokens.
    primes, offsets: int64 [Engram layers, columns], rows of each column's table and its first row.
    multipliers: int64 [Engram layers, max n-gram].
    """

    token_map: torch.Tensor
    pad: int
    primes: torch.Tensor
    offsets: torch.Tensor
    multipliers: torch.Tensor


def engram_multipliers(config: "ModelConfig") -> torch.Tensor:
    """The odd factors of the hash, drawn once for each layer.

    Args:
        config: the model.
    Returns: int64 [Engram layers, max n-gram]; the column is the look-back distance.
    Source: SPEC 7.2. The bound keeps every product inside int64.
    """
    bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
    rows = [
        np.random.default_rng(10007 * layer).integers(0, bound, size=config.engram_max_ngram_size, dtype=np.int64) * 2
        + 1
        for layer in config.engram_layer_ids
    ]
    return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, config.engram_max_ngram_size, dtype=torch.int64)


def compressed_token_ids(tokenizer: Tokenizer, config: "ModelConfig") -> torch.Tensor:
    """The id classes the hash sees: tokens that differ only in case, accents or spacing share one.

    Args:
        tokenizer: the checkpoint's tokenizer. config: the model.
    Returns: int64 [vocab_size]. Ids that the tokenizer does not have (padding of the vocabulary) map as the pad token.
    Errors: CheckpointError when the number of classes is not `engram_compressed_vocab_size`: this is another tokenizer.
    Source: SPEC 7.1.
    """
    classes: dict[str, int] = {}
    length = tokenizer.get_vocab_size(with_added_tokens=True)
    ids = [classes.setdefault(_class_key(tokenizer, token), len(classes)) for token in range(length)]
    if len(classes) != config.engram_compressed_vocab_size:
        raise CheckpointError(
            f"the tokenizer gives {len(classes)} compressed token ids, but the config's 'engram_compressed_vocab_size' "
            f"is {config.engram_compressed_vocab_size}; use the tokenizer.json that belongs to this checkpoint"
        )
    if config.engram_pad_token_id >= length:
        raise CheckpointError(
            f"the config's 'engram_pad_token_id' is {config.engram_pad_token_id}, but the tokenizer has only {length} "
            "tokens; use the tokenizer.json that belongs to this checkpoint"
        )
    ids += [ids[config.engram_pad_token_id]] * (config.vocab_size - length)
    return torch.tensor(ids[: config.vocab_size], dtype=torch.int64)


def engram_tables(config: "ModelConfig", tokenizer: Tokenizer) -> EngramTables:
    """All constants of the hash for one model.

    Args:
        config: the model. tokenizer: the checkpoint's tokenizer.
    Errors: CheckpointError when the tokenizer is not the model's.
    Source: SPEC 7.1-7.4.
    """
    sizes, heads = config.engram_max_ngram_size, config.engram_n_heads
    layers = len(config.engram_layer_ids)
    primes = torch.tensor(engram_primes(layers, sizes, heads, config.engram_vocab_size), dtype=torch.int64)
    primes = primes.reshape(layers, config.engram_columns)
    token_map = compressed_token_ids(tokenizer, config)
    return EngramTables(
        token_map=token_map,
        pad=int(token_map[config.engram_pad_token_id]),
        primes=primes,
        offsets=primes.cumsum(1) - primes,
        multipliers=engram_multipliers(config),
    )


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a `tokenizer.json`.

    Args:
        path: the file, or the folder that holds it under this name.
    Errors: CheckpointError when it is not there or is not a tokenizer.
    """
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"there is no tokenizer at {file}; Engram needs the checkpoint's tokenizer.json")
    try:
        return Tokenizer.from_file(str(file))
    # The library raises plain Exception for every kind of damage.
    except Exception as error:
        raise CheckpointError(f"{file} is not a tokenizer: {error}") from error


def _class_key(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([token], skip_special_tokens=False)
    # A token that is no whole UTF-8 character has no text to normalize; its raw form stands for itself.
    if "\ufffd" in text:
        return tokenizer.id_to_token(token) or text
    return _NORMALIZE.normalize_str(text) or text
