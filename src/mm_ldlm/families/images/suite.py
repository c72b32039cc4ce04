"""Evaluation of images and captions: accuracy by an independent classifier, captions of held-out images, pictures.

The classifier is a support vector machine of scikit-learn, trained on real images of the training split with the labels
of their records. It shares nothing with the model. Without labels the report only shows the images.

n images, P values of an image.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mm_ldlm.data import held_out as sentences
from mm_ldlm.data.corpus.record import LABEL, label_text, meta_value
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.evaluation.suites.base import Evaluation, Form, Headline, Metrics, Suite

Vectors = npt.NDArray[np.float32]


class ImagesSuite(Suite):
    """Score the images and captions that `sampling` generated, by a classifier trained on real images."""

    name, title = "images", "Images and captions"
    samples: ClassVar[tuple[Any, ...]] = ("caption_to_image", "image_to_caption", "image_text")
    sections = ("images",)
    template = "mm_ldlm.families.images/report.html.j2"
    usual = False

    def skip_reason(self, given: Evaluation) -> str | None:
        if any(len(table) for table in given.samples.values()):
            return None
        for task in self.samples:
            if (reason := given.model.capabilities.refusal(task)) is not None:
                return reason
        return f"sampling was configured without the tasks {', '.join(self.samples)} (sampling.tasks)"

    def evaluate(self, given: Evaluation) -> tuple[Metrics, None]:
        own = given.sections["images"].evaluation
        drawn, written, both = (given.samples[task] for task in self.samples)
        dataset, bootstrap = given.dataset, given.bootstrap
        train, test = (
            sentences.sample_rows(sentences.split_rows(dataset, split), own.classifier_rows, seed=given.seed)
            for split in ("train", "test")
        )
        train_nP, labels = pixels_of(dataset, train), _labels(dataset, train)
        names = sorted({label for label in labels if label is not None})
        size = dataset.field("images").shape
        found: Metrics = {"size": list(size), "labels": names}
        classifier = classifier_of(train_nP, labels) if len(names) > 1 else None
        if classifier is None:
            found["left_out"] = ["the records of the training split have no labels (meta_columns: [label])"]
        else:
            hits_n = hits(classifier, pixels_of(dataset, test), _labels(dataset, test))
            found["classifier"] = {"trained_on": sum(label is not None for label in labels), "real_images": len(hits_n)}
            if len(hits_n):
                found["classifier"]["real_accuracy"] = bootstrap.proportion(hits_n)
        if len(drawn):
            rows = sentences.rows_of_ids(dataset, drawn["id"].tolist())
            images_nP, real_nP = np.stack(drawn["image"].tolist()), pixels_of(dataset, rows)
            entry = {
                "samples": len(drawn),
                "model_calls": drawn["model_calls"].mean(),
                "nearest_training": {
                    "generated": bootstrap.mean(_nearest(images_nP, train_nP)),
                    "real": bootstrap.mean(_nearest(real_nP, train_nP)),
                },
            }
            if classifier and len(hits_n := hits(classifier, images_nP, _labels(dataset, rows))):
                entry["accuracy"] = bootstrap.proportion(hits_n)
            entry["pictures"] = pictures(images_nP, drawn["source"], size, count=own.pictures)
            found["caption_to_image"] = entry
        if len(written):
            rows = sentences.rows_of_ids(dataset, written["id"].tolist())
            held, texts = sentences.read_sentences(dataset, rows), [str(text) for text in written["text"]]
            training = {text.lower() for text in sentences.texts_of_split(dataset, "train")}
            exact = [tuple(map(int, a)) == tuple(b) for a, b in zip(written["tokens"], held.tokens, strict=True)]
            entry = {
                "samples": len(written),
                "model_calls": written["model_calls"].mean(),
                "exact_match": bootstrap.proportion(exact),
                "attested": bootstrap.proportion([text.lower() in training for text in texts]),
            }
            pairs = zip(texts, _labels(dataset, rows), strict=True)
            if right := [label_in(text, names) == label for text, label in pairs if label]:
                entry["accuracy"] = bootstrap.proportion(right)
            entry["pictures"] = pictures(pixels_of(dataset, rows[: own.pictures]), texts, size, count=own.pictures)
            found["image_to_caption"] = entry
        if len(both):
            images_nP, texts = np.stack(both["image"].tolist()), [str(text) for text in both["text"]]
            entry = {"samples": len(both), "model_calls": both["model_calls"].mean()}
            if classifier:
                predicted = zip(classifier.predict(images_nP), texts, strict=True)
                agree = [label == label_in(text, names) for label, text in predicted]
                entry["agreement"] = bootstrap.proportion(agree)
            entry["pictures"] = pictures(images_nP, texts, size, count=own.pictures)
            found["image_text"] = entry
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        found: dict[str, Any] = {"images.classifier_accuracy": metrics.get("classifier", {}).get("real_accuracy")}
        for task in self.samples:
            keys = ("accuracy", "exact_match", "attested", "agreement")
            found |= {f"{task}.{key}": metrics.get(task, {}).get(key) for key in keys}
        nearest = metrics.get("caption_to_image", {}).get("nearest_training", {})
        return found | {f"caption_to_image.nearest_training.{name}": value for name, value in nearest.items()}

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        real: tuple[tuple[str, str, Form]] = (("real held-out images", "images.classifier_accuracy", "fraction"),)
        note = "recognised by a classifier trained on real images"
        return (
            Headline("caption_to_image.accuracy", "Image of the caption", "fraction", note, real, leading=True),
            Headline(
                "image_to_caption.accuracy", "Caption of the image", "fraction", "with the label of the held-out image",
                leading=True,
            ),
            Headline(
                "image_text.agreement", "Image and caption agree", "fraction", "generated together, by the classifier"
            ),
        )  # fmt: skip


def classifier_of(images_nP: Vectors, labels: Sequence[str | None]) -> Any:
    """Fit a support vector machine with a radial kernel to the pixels (n, P) of the images that have a label."""
    from sklearn.svm import SVC

    known = [i for i, label in enumerate(labels) if label is not None]
    return SVC().fit(images_nP[known], [str(labels[i]) for i in known])


def hits(classifier: Any, images_nP: Vectors, labels: Sequence[str | None]) -> npt.NDArray[np.bool_]:
    """Return for each image with a label whether the prediction is that label."""
    pairs = zip(classifier.predict(images_nP), labels, strict=True)
    return np.array([found == label for found, label in pairs if label is not None], bool)


def label_in(caption: str, labels: Sequence[str]) -> str | None:
    """Return the one label whose words the caption contains; None if it contains none or several."""
    padded = f" {' '.join(caption.lower().split())} "
    found = [label for label in labels if f" {label.lower()} " in padded]
    return found[0] if len(found) == 1 else None


def pictures(vectors: Any, captions: Any, size: tuple[int, ...], *, count: int) -> list[dict[str, str]]:
    """Encode the first `count` images as PNG (base64), with their captions."""
    pairs = list(zip(vectors, captions, strict=False))[:count]
    return [{"png": png(np.asarray(vector, np.float32).reshape(size)), "caption": str(text)} for vector, text in pairs]


def png(pixels_HWC: Vectors) -> str:
    """Encode pixels between 0 and 1 as a PNG in base64."""
    from PIL import Image

    levels = np.round(np.clip(pixels_HWC, 0, 1) * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def pixels_of(dataset: Dataset, rows: npt.NDArray[np.int64]) -> Vectors:
    """Read the images (n, P) of store rows, 0 to 1."""
    return np.asarray(dataset.field("images").batch(rows), np.float32)


def _labels(dataset: Dataset, rows: npt.NDArray[np.int64]) -> list[str | None]:
    """Read the label of each of these records; None for a record without one."""
    return [label_text(meta_value(meta, LABEL)) for meta in dataset.records.table(rows).column("meta").to_pylist()]


def _nearest(images_nP: Vectors, others_mP: Vectors) -> npt.NDArray[np.float64]:
    """Return the distance (n,) of each image to the nearest of others, root mean square over pixels."""
    from scipy.spatial.distance import cdist

    parts = [cdist(part, others_mP).min(axis=1) for part in np.array_split(images_nP, max(1, len(images_nP) // 256))]
    return np.concatenate(parts) / np.sqrt(images_nP.shape[1])
