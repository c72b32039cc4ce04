"""Evaluation of images and captions: accuracy by an independent classifier, captions of held-out images, pictures.

The classifier is a support vector machine of scikit-learn, trained on real images of the training split with the labels
of their records. It shares nothing with the model. Without labels the report only shows the images.

n images, P values of an image.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data import Dataset, sentences
from mm_ldlm.evaluation.bootstrap import mean_interval, proportion_interval
from mm_ldlm.evaluation.config import BootstrapConfig, ImagesSuiteConfig

Vectors = npt.NDArray[np.float32]
TASKS = ("caption_to_image", "image_to_caption", "image_text")


def skip_reason(model: Any, tables: Sequence[Any]) -> str | None:
    """Explain why there is nothing to evaluate; None if a table of samples has rows."""
    if any(len(table) for table in tables):
        return None
    for task in TASKS:
        if (reason := model.capabilities.refusal(task)) is not None:
            return str(reason)
    return f"sampling was configured without the tasks {', '.join(TASKS)} (sampling.tasks)"


def evaluate(
    dataset: Dataset,
    *,
    drawn: Any,
    written: Any,
    both: Any,
    config: ImagesSuiteConfig,
    bootstrap: BootstrapConfig,
    seed: int,
) -> dict[str, Any]:
    """Score the tables `samples_caption_to_image`, `samples_image_to_caption` and `samples_image_text`."""
    options: dict[str, Any] = {"replicates": bootstrap.replicates, "level": bootstrap.level, "seed": seed}
    train = sentences.sample_rows(sentences.split_rows(dataset, "train"), config.classifier_rows, seed=seed)
    size = tuple(dataset.require("images").manifest.meta["image_size"])
    train_nP, labels = _vectors(dataset, train), sentences.labels_of(dataset, train)
    known = [i for i, label in enumerate(labels) if label is not None]
    names = sorted({str(labels[i]) for i in known})
    classifier = Classifier(train_nP[known], [str(labels[i]) for i in known]) if len(names) > 1 else None
    found: dict[str, Any] = {"size": list(size), "labels": names}
    if classifier is None:
        found["left_out"] = "the records of the training split have no labels (meta_columns: [label])"
    else:
        test = sentences.sample_rows(sentences.split_rows(dataset, "test"), config.classifier_rows, seed=seed)
        hits_n = classifier.hits(_vectors(dataset, test), sentences.labels_of(dataset, test))
        found["classifier"] = {"trained_on": len(known), "real_images": len(hits_n)}
        if len(hits_n):
            found["classifier"]["real_accuracy"] = proportion_interval(hits_n, **options).as_dict()
    if len(drawn):
        found["caption_to_image"] = _drawn(dataset, drawn, classifier, train_nP, options)
        found["caption_to_image"]["pictures"] = pictures(drawn["image"], drawn["source"], size, count=config.pictures)
    if len(written):
        found["image_to_caption"] = _written(dataset, written, names, options)
        rows = sentences.rows_of_ids(dataset, written["id"].tolist())[: config.pictures]
        found["image_to_caption"]["pictures"] = pictures(
            _vectors(dataset, rows), written["text"], size, count=config.pictures
        )
    if len(both):
        found["image_text"] = _both(both, classifier, names, options)
        found["image_text"]["pictures"] = pictures(both["image"], both["text"], size, count=config.pictures)
    return found


class Classifier:
    """Support vector machine with a radial kernel on the pixels (n, P)."""

    def __init__(self, images_nP: Vectors, labels: Sequence[str]) -> None:
        from sklearn.svm import SVC

        self._svm = SVC().fit(images_nP, list(labels))

    def predict(self, images_nP: Vectors) -> list[str]:
        """Predict the label of each image."""
        return [str(label) for label in self._svm.predict(images_nP)]

    def hits(self, images_nP: Vectors, labels: Sequence[str | None]) -> npt.NDArray[np.bool_]:
        """Return for each image with a label whether the prediction is that label."""
        pairs = zip(self.predict(images_nP), labels, strict=True)
        return np.array([found == label for found, label in pairs if label is not None], bool)


def label_in(caption: str, labels: Sequence[str]) -> str | None:
    """Return the one label whose words the caption contains; None if it contains none or several."""
    padded = f" {' '.join(caption.lower().split())} "
    found = [label for label in labels if f" {label.lower()} " in padded]
    return found[0] if len(found) == 1 else None


def pictures(vectors: Any, captions: Any, size: tuple[int, ...], *, count: int) -> list[dict[str, str]]:
    """Encode the first `count` images as PNG (base64), with their captions."""
    pairs = zip(list(vectors)[:count], list(captions)[:count], strict=True)
    return [{"png": png(np.asarray(vector, np.float32).reshape(size)), "caption": str(text)} for vector, text in pairs]


def png(pixels_HWC: Vectors) -> str:
    """Encode pixels between 0 and 1 as a PNG in base64."""
    from PIL import Image

    levels = np.round(np.clip(pixels_HWC, 0, 1) * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


# -- the tasks --------------------------------------------------------------------------------------------------------


def _drawn(
    dataset: Dataset, drawn: Any, classifier: Classifier | None, train_nP: Vectors, options: dict[str, Any]
) -> dict[str, Any]:
    """Score images of held-out captions: whether the classifier finds the label of the caption's record.

    `nearest_training` is the distance (root mean square over pixels) to the nearest training image, beside that of
    the real images of the same captions: much smaller distances mean copies.
    """
    rows = sentences.rows_of_ids(dataset, drawn["id"].tolist())
    images_nP, real_nP = np.stack([np.asarray(row, np.float32) for row in drawn["image"]]), _vectors(dataset, rows)
    found: dict[str, Any] = {
        "images": len(drawn),
        "model_calls": float(drawn["model_calls"].mean()),
        "nearest_training": {
            name: mean_interval(_nearest(some, train_nP), **options).as_dict()
            for name, some in (("generated", images_nP), ("real", real_nP))
        },
    }
    if classifier is not None and len(hits_n := classifier.hits(images_nP, sentences.labels_of(dataset, rows))):
        found["accuracy"] = proportion_interval(hits_n, **options).as_dict()
    return found


def _written(dataset: Dataset, written: Any, names: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Score captions of held-out images: the label in the caption, the whole caption, and whether it is well formed.

    `attested` is the fraction of captions that occur in the training split.
    """
    rows = sentences.rows_of_ids(dataset, written["id"].tolist())
    held = sentences.read_sentences(dataset, rows)
    texts = [str(text) for text in written["text"]]
    tokens = [tuple(int(v) for v in row) for row in written["tokens"]]
    exact_n = np.array([a == b for a, b in zip(tokens, held.tokens, strict=True)], bool)
    training = {text.lower() for text in sentences.texts_of_split(dataset, "train")}
    found: dict[str, Any] = {
        "captions": len(texts),
        "model_calls": float(written["model_calls"].mean()),
        "exact_match": proportion_interval(exact_n, **options).as_dict(),
        "attested": proportion_interval(
            np.array([text.lower() in training for text in texts], bool), **options
        ).as_dict(),
    }
    labels = sentences.labels_of(dataset, rows)
    if pairs := [(label_in(text, names), label) for text, label in zip(texts, labels, strict=True) if label]:
        found["accuracy"] = proportion_interval(np.array([a == b for a, b in pairs], bool), **options).as_dict()
    return found


def _both(both: Any, classifier: Classifier | None, names: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Score images drawn with their captions: whether the classifier finds the label that the caption contains."""
    found: dict[str, Any] = {"samples": len(both), "model_calls": float(both["model_calls"].mean())}
    if classifier is not None:
        images_nP = np.stack([np.asarray(row, np.float32) for row in both["image"]])
        pairs = zip(classifier.predict(images_nP), [label_in(str(text), names) for text in both["text"]], strict=True)
        found["agreement"] = proportion_interval(np.array([a == b for a, b in pairs], bool), **options).as_dict()
    return found


def _vectors(dataset: Dataset, rows: npt.NDArray[np.int64]) -> Vectors:
    return sentences.images_of(dataset, rows).reshape(len(rows), -1)


def _nearest(images_nP: Vectors, others_mP: Vectors) -> npt.NDArray[np.float64]:
    from scipy.spatial.distance import cdist

    parts = [cdist(part, others_mP).min(axis=1) for part in np.array_split(images_nP, max(1, len(images_nP) // 256))]
    return np.concatenate(parts) / np.sqrt(images_nP.shape[1])
