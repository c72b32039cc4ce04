"""Probe sentences: they identify an encoder of which only the vectors are known, and show when its vectors change.

The vectors of a service vary in their last bits, for example with the batches that it forms, so that a digest of them
would differ at each contact. The fingerprint therefore contains a sketch of the probe vectors: a random projection of
each to a few numbers. Two fingerprints belong to the same encoder if their parameters are equal and their sketches are
close (Johnson–Lindenstrauss: a projection keeps distances up to a factor near 1).
"""

import base64
import hashlib
import math
import re

import numpy as np
import numpy.typing as npt

SENTENCES = (
    "A man is playing the guitar on a stage.",
    "The committee did not approve the budget for 2019, although the deficit had fallen to 3.4 %.",
    "¿Dónde está la biblioteca? Wo ist der Bahnhof? 図書館はどこですか。",
    "No",
    "def add(a, b): return a + b  # returns the sum",
    "Photosynthesis converts light into chemical energy, which plants store in carbohydrates; the oxygen that is set "
    "free in this process is the source of almost all oxygen in the atmosphere, and without it most animals could not "
    "live.",
)
"""They differ in length, language, script and domain. Another list is another fingerprint."""
SKETCH_DIM = 8
"""Numbers of the sketch for each probe sentence."""
_STEPS = 32_767
_LETTERS = math.ceil((4 + 2 * len(SENTENCES) * SKETCH_DIM) / 3) * 4
_FINGERPRINT = re.compile(rf"http-(?P<identity>[^-]+)-[A-Za-z0-9_=-]{{{_LETTERS}}}")


def fingerprint(identity: str, probes_Kd: npt.NDArray[np.float32]) -> str:
    """Make a fingerprint of the digest of the parameters and the vectors of the probe sentences."""
    return f"http-{identity}-{_pack(_project(probes_Kd))}"


def identity_of(found: str) -> str | None:
    """Return the digest of the parameters in a fingerprint, or None if it is not one of this module."""
    match = _FINGERPRINT.fullmatch(found)
    return match and match["identity"]


def distance_to(found: str, probes_Kd: npt.NDArray[np.float32]) -> float:
    """Return the largest distance of a probe vector to the one in the fingerprint, relative to the latter's length.

    The distances are between projections, and differ from the distances of the vectors by about a third.
    """
    raw = base64.urlsafe_b64decode(found.split("-", 2)[2])
    scale, numbers = np.frombuffer(raw[:4], "<f4")[0], np.frombuffer(raw[4:], "<i2")
    return relative_distance(_project(probes_Kd), numbers.reshape(-1, SKETCH_DIM) / _STEPS * np.float64(scale))


def relative_distance(now_Kd: npt.NDArray[np.floating], reference_Kd: npt.NDArray[np.floating]) -> float:
    """Return the largest of ‖a − b‖ / ‖b‖ over the rows a of `now` and b of `reference`."""
    now, reference = now_Kd.astype(np.float64), reference_Kd.astype(np.float64)
    scale = np.maximum(np.linalg.norm(reference, axis=1), 1e-12)
    return float((np.linalg.norm(now - reference, axis=1) / scale).max())


def _project(probes_Kd: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Project (K, d) to (K, SKETCH_DIM) with random signs, which depend on d only."""
    dim = probes_Kd.shape[1]
    bits = np.frombuffer(hashlib.shake_256(f"mm_ldlm probes {dim}".encode()).digest(dim * SKETCH_DIM), np.uint8) & 1
    signs_dS = bits.reshape(dim, SKETCH_DIM).astype(np.float64) * 2 - 1
    return probes_Kd.astype(np.float64) @ signs_dS / np.sqrt(SKETCH_DIM)


def _pack(sketch_KS: npt.NDArray[np.float64]) -> str:
    """Write the scale as float32 and the numbers as int16, in URL-safe base64."""
    scale = np.maximum(np.abs(sketch_KS).max(), 1e-30).astype("<f4")
    numbers = np.round(sketch_KS / np.float64(scale) * _STEPS).astype("<i2")
    return base64.urlsafe_b64encode(scale.tobytes() + numbers.tobytes()).decode()
