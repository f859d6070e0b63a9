# Written by scripts/typing_stubs.py --write.
from lightlib_lightning.internals.functions import reasons_to_skip as _runif_reasons
from lightning_utilities.core.imports import RequirementCache
__all__ = ['RequirementCache', '_OMEGACONF_AVAILABLE', '_ONNXSCRIPT_AVAILABLE', '_ONNX_AVAILABLE', '_PSUTIL_AVAILABLE', '_RICH_AVAILABLE', '_SKLEARN_AVAILABLE', '_TORCH_TRT_AVAILABLE', '_runif_reasons']
_OMEGACONF_AVAILABLE: bool
_ONNXSCRIPT_AVAILABLE: bool
_ONNX_AVAILABLE: bool
_PSUTIL_AVAILABLE: bool
_RICH_AVAILABLE: bool
_SKLEARN_AVAILABLE: bool
_TORCH_TRT_AVAILABLE: bool
