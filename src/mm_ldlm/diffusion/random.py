"""Counter-based random numbers: each is a hash of (seed, row, draw, position) and of nothing else.

The noise of a row therefore does not depend on its neighbours in the batch, on padding, on the number of processes, or
on what was drawn before a resume. A row is one example of a batch, or one text or latent of a request.

The hash is two rounds of splitmix64's finaliser (Steele, Lea, Flood 2014) over a keyed Weyl sequence, in int64 tensor
operations, whose overflow wraps on every device.
"""

import hashlib

import torch
from torch import Tensor

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
# Weyl constants of the axes, last axis first: an element's counter is the sum of index × constant, so a longer last
# axis leaves the other elements unchanged. The constants are odd and far apart, so that no two positions of a tensor
# that fits in memory have the same counter.
_AXES = (_GAMMA, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8CB92BA72F3D8DD7)


def _signed(word: int) -> int:
    """Return the int64 with the same bits."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


def _mix(word: int) -> int:
    """Apply splitmix64's finaliser to a Python integer."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _shift_xor_(x: Tensor, bits: int) -> Tensor:
    """Compute x ^= x >>> bits, with torch's arithmetic shift made logical."""
    return x.bitwise_xor_(x.bitwise_right_shift(bits).bitwise_and_((1 << (64 - bits)) - 1))


def _mix_(x: Tensor) -> Tensor:
    """Apply the same finaliser to an int64 tensor that the caller owns, in place."""
    _shift_xor_(x, 30).mul_(_signed(_MIX_1))
    _shift_xor_(x, 27).mul_(_signed(_MIX_2))
    return _shift_xor_(x, 31)


def _open_unit(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn bits into uniform numbers in (0, 1): odd multiples of 2⁻⁵³ (float64) or of 2⁻²⁴ (narrower types)."""
    keep = 52 if dtype == torch.float64 else 23
    whole = bits.bitwise_right_shift(64 - keep).bitwise_and_((1 << keep) - 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return whole.mul_(2).add_(1).to(wide).mul_(2.0 ** -(keep + 1)).to(dtype)


class RowGenerator:
    """A stream of random numbers for each row of a batch.

    `rows` (B,) int64 identifies the rows (in training: the position in the global batch, with the step in the seed or
    in a fork). Each call to `uniform` or `normal` is the next draw. Element [i, j, ...] of a draw depends only on the
    seed, the path of forks, rows[i], the draw's number and (j, ...). Integers are exact on every device; `normal` may
    differ in the last bit between devices.
    """

    __slots__ = ("_draws", "_key", "_rows_mixed", "rows", "seed")

    def __init__(self, seed: int, rows: Tensor) -> None:
        self.seed = int(seed)
        self.rows = rows
        self._key = _mix(_mix(self.seed) + _GAMMA)
        self._draws = 0
        self._rows_mixed: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def __len__(self) -> int:
        return self.rows.shape[0]

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Draw (B, *shape) uniform numbers in the open interval (0, 1)."""
        return _open_unit(self._bits(shape), dtype)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw (B, *shape) standard normal numbers by inverting the distribution function of float64 uniforms."""
        return torch.special.ndtri(_open_unit(self._bits(shape), torch.float64)).to(dtype)

    def shared_uniform(self) -> float:
        """Draw a uniform number that does not depend on the rows: the same on all ranks that made the same calls.

        It is computed on the host, without a wait for the device.
        """
        word = _mix(_mix(_mix(self._next_key() ^ 0x5348415245445F55)))
        return (2 * (word >> 12) + 1) * 2.0**-53

    def fork(self, name: str | int) -> "RowGenerator":
        """Make an independent stream for the same rows, which does not depend on what was drawn before."""
        digest = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
        return self._like(self.rows, _mix(self._key ^ _mix(int.from_bytes(digest, "little") + _GAMMA)), 0)

    def select(self, index: Tensor) -> "RowGenerator":
        """Return the same stream, at the same draw, for `rows[index]` (indices or a boolean mask)."""
        return self._like(self.rows[index], self._key, self._draws)

    def numbered(self, number_B: Tensor) -> "RowGenerator":
        """Make streams of the same rows that differ by these numbers (B,) below 2¹⁶, as a fork of each row would."""
        return self._like(self.rows * (1 << 16) + number_B, self._key, self._draws)

    # -- internals --------------------------------------------------------------------------------------------------

    def _like(self, rows: Tensor, key: int, draws: int) -> "RowGenerator":
        other = RowGenerator(self.seed, rows)
        other._key, other._draws = key, draws
        return other

    def _next_key(self) -> int:
        self._draws += 1
        return _mix(self._key + self._draws * _GAMMA)

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        if self._rows_mixed is None:
            self._rows_mixed = _mix_(self.rows * _signed(_GAMMA) + _signed(_mix(self.seed ^ 0x526F7773)))
        key = self._next_key()
        start = _mix_(self._rows_mixed ^ _signed(key))
        bits = start.view(-1, *(1 for _ in shape))
        for axis, size in enumerate(shape):
            index = torch.arange(size, dtype=torch.int64, device=self.device)
            weyl = index.mul_(_signed(_AXES[len(shape) - 1 - axis]))
            bits = bits + weyl.view(-1, *(1 for _ in shape[axis + 1 :]))
        # The second key between the rounds separates streams whose Weyl sequences happen to overlap.
        return _mix_(_mix_(bits).bitwise_xor_(_signed(_mix(key ^ _MIX_1))))
