"""The Trainer's arguments for a run that prints, logs and saves nothing."""

from __future__ import annotations

from typing import Any

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
