"""Exporting a classifier as one ONNX file, from pixels to probabilities; it is compared with torch before writing."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..clip.formats.files import first_sentence
from ..errors import ModelError
from ..files import publish_bytes
from ..rng import stream
from .predict import Predictor
from .prior import Prior

_MAX_LOGIT_DIFFERENCE, _MAX_PROBABILITY_DIFFERENCE = 1e-2, 1e-4  # from torch
_MAX_BYTES = 2**31 - 2**20  # limit of the format
_INPUT, _OUTPUTS = "pixels", ("logits", "probabilities")
_MIN_SCORE = -1e4  # minimum of the scores: exp is 0, and in float32 adding the log prior still changes them
_LOG_PRIOR = "log_prior"  # logarithm of the class prior: an initializer, and an optional input
_CHECKED_BATCH_SIZES = (1, 2, 17)


class Difference(NamedTuple):
    """The largest differences between the outputs of ONNX and torch."""

    logits: float
    probabilities: float
    images: int  # number of compared images


class _FixedClassPredictor(nn.Module):
    """A predictor with constant class features, from uint8 pixels, (B, 3, side, side), to logits and probabilities."""

    def __init__(self, predictor: Predictor):
        super().__init__()
        self.model = predictor.model
        prompts = self.model.method.inference_prompts(predictor.prompts)
        self.params = self.model.params(prompts)
        self.classes = self.model.cached_class_features(prompts).clone()
        self.vision = self.model.encoder.clip.vision
        self.head = None if predictor.prior is None else _PriorHead(predictor.prior)
        self.mean, self.std = (
            torch.tensor(channels).view(3, 1, 1) for channels in (predictor.transform.mean, predictor.transform.std)
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        method, encoder = self.model.method, self.model.encoder
        tokens = self.vision.embed((pixels.float() / 255 - self.mean) / self.std)
        images = self.model.image_features(method.frozen_features(encoder, tokens), self.params)
        logits = method.inference_logits(encoder, images, self.classes, self.params)
        if self.head is not None:
            features = encoder.image_features(tokens) if self.head.has_prototypes else None
            logits = self.head(logits.log_softmax(-1), features)
        return logits, logits.softmax(-1)


class _PriorHead(nn.Module):
    """`PosteriorModel.log_posteriors` in torch, with the class prior as a buffer."""

    log_prior: Tensor

    def __init__(self, prior: Prior):
        super().__init__()
        model, prototypes = prior.model, prior.model.prototypes
        self.text_scale, self.feature_scale = model.text_scale, model.feature_scale
        self.has_prototypes, self.bias = prototypes is not None, _to_float32(model.logit_bias)
        self.register_buffer(_LOG_PRIOR, _to_float32(np.log(prior.class_prior)))
        if prototypes is not None:
            means, counts = prototypes.totals / prototypes.counts[:, None], prototypes.counts
            # Centred, because float32 is imprecise for distances between points far from the origin.
            centred = means - means.mean(axis=0)
            self.centre, self.means = _to_float32(means.mean(axis=0)), _to_float32(centred.T)
            self.square_norms = _to_float32((centred**2).sum(axis=1))
            self.whiten, self.shrinkage = _to_float32(prototypes.whiten), _to_float32(counts / (counts + 1))
            self.log_determinant = _to_float32(len(prototypes.whiten) * np.log1p(1 / counts))

    def forward(self, log_probs: Tensor, features: Tensor | None) -> Tensor:
        scores = self.text_scale * log_probs + self.bias
        if features is not None:
            scores = scores - self.feature_scale / 2 * self._distances(features)
        # The prior is added last: otherwise constant folding would merge it with the bias, and it would be no input.
        return (scores.clamp(min=_MIN_SCORE) + self.log_prior).log_softmax(-1)

    def _distances(self, features: Tensor) -> Tensor:
        """Compute `Prototypes.distances` for images that did not contribute to the prototypes."""
        whitened = features @ self.whiten - self.centre
        squares = (whitened**2).sum(-1, keepdim=True) - 2 * whitened @ self.means + self.square_norms
        return squares.clamp(min=0.0) * self.shrinkage + self.log_determinant


def _to_float32(array: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def export_onnx(predictor: Predictor, classes: Sequence[str], file: Path) -> Difference:
    """Write an ONNX file and return its difference from torch.

    Raises:
        ModelError: A library is missing, the method cannot be exported, or the difference is too large.
    """
    onnx, runtime = onnx_libraries()
    if predictor.model.encoder.device.type != "cpu":
        raise ModelError('ONNX is written on the CPU: load the classifier with device="cpu"')
    proto = _convert(predictor)
    if predictor.prior is not None:
        _make_prior_an_input(proto)
    for value in (proto.graph.input[0], *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]  # shapes of intermediate values
    transform = predictor.transform
    metadata = {
        "classes": json.dumps(list(classes)),
        "short_side": str(transform.short_side),
        "crop": str(transform.crop),
        "resample": transform.resample.name.lower(),
        "squash": json.dumps(transform.squash),
    }
    if predictor.prior is not None:
        metadata["prior"] = json.dumps(predictor.prior.named_class_prior(classes))
    onnx.helper.set_model_props(proto, metadata)
    if proto.ByteSize() > _MAX_BYTES:
        raise ModelError(f"the model takes {proto.ByteSize() / 1e9:.1f} GB; an ONNX file is limited to 2 GB")
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    difference = _compare(runtime, content, predictor)
    if difference.logits > _MAX_LOGIT_DIFFERENCE or difference.probabilities > _MAX_PROBABILITY_DIFFERENCE:
        raise ModelError(
            f"{file}: is not written: its logits differ from torch's by {difference.logits:.1e} "
            f"and its probabilities by {difference.probabilities:.1e}; export the classifier without --onnx"
        )
    publish_bytes(file, content)
    return difference


def onnx_libraries() -> tuple[Any, Any]:
    """Import onnx and onnxruntime; raises ModelError if a library is missing."""
    try:
        import_module("onnxscript")  # torch's exporter needs it
        return import_module("onnx"), import_module("onnxruntime")
    except ImportError as error:
        raise ModelError(f"ONNX needs {error.name}: pip install 'fedcopl[onnx]'") from error


class _RefuseNumpy(TorchFunctionMode):
    """Raises an error when a tensor is converted to NumPy."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.numpy:
            raise RuntimeError("part of it is computed outside of torch")
        return function(*args, **(kwargs or {}))


def _convert(predictor: Predictor) -> Any:
    """Convert the model to ONNX for batches of any size; raises ModelError if a part of it is not in torch."""
    try:
        with torch.no_grad(), _without_logs():
            module, example = _FixedClassPredictor(predictor).eval(), torch.from_numpy(_test_images(predictor, 2))
            with _RefuseNumpy():
                module(example)
            sizes = {_INPUT: {0: torch.export.Dim("batch")}}
            program = torch.export.export(module, (example,), dynamic_shapes=sizes, strict=True)
            exported = torch.onnx.export(
                program, dynamo=True, input_names=[_INPUT], output_names=list(_OUTPUTS), verbose=False
            )
            return cast(Any, exported).model_proto
    except Exception as error:  # the exporter raises errors of many types
        name = predictor.model.method.config.method
        raise ModelError(
            f"{name} with its options cannot be written as ONNX: {first_sentence(error)}; "
            "the classifier itself can be exported without --onnx"
        ) from error


@contextmanager
def _without_logs() -> Iterator[None]:
    """Suppress logs and warnings of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _make_prior_an_input(proto: Any) -> None:
    """Make the initializer of the class prior an optional input named `log_prior`."""
    [log_prior] = [value for value in proto.graph.initializer if value.name.endswith(_LOG_PRIOR)]
    for node in proto.graph.node:
        node.input[:] = [_LOG_PRIOR if name == log_prior.name else name for name in node.input]
    log_prior.name = _LOG_PRIOR
    if all(value.name != _LOG_PRIOR for value in proto.graph.input):
        kind = proto.graph.input.add(name=_LOG_PRIOR).type.tensor_type
        kind.elem_type = log_prior.data_type
        kind.shape.dim.add(dim_value=log_prior.dims[0])


def _compare(runtime: Any, content: bytes, predictor: Predictor) -> Difference:
    """Return the differences of ONNX from torch for batches of several sizes."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    logit_differences, probability_differences = [0.0], [0.0]
    for size in _CHECKED_BATCH_SIZES:
        pixels = _test_images(predictor, size)
        logits, probabilities = session.run(list(_OUTPUTS), {_INPUT: pixels})
        log_probs = predictor.log_probabilities(pixels)
        expected = predictor.logits(pixels).double().numpy() if predictor.prior is None else log_probs
        logit_differences.append(float(np.abs(logits - expected).max()))
        probability_differences.append(float(np.abs(probabilities - np.exp(log_probs)).max()))
    return Difference(max(logit_differences), max(probability_differences), sum(_CHECKED_BATCH_SIZES))


def _test_images(predictor: Predictor, count: int) -> NDArray[np.uint8]:
    """Return images of coarse and fine random squares, (count, 3, side, side)."""
    side, rng = predictor.transform.crop, stream(0, "pictures for onnx", count)
    pictures = np.empty((count, 3, side, side), np.uint8)
    for number in range(count):
        coarse = rng.integers(0, 256, (3, 2 ** (1 + number % 4), 2 ** (1 + number % 4)), dtype=np.uint8)
        rows = np.arange(side) * coarse.shape[-1] // side
        pictures[number] = coarse[:, rows][:, :, rows]
    return pictures
