"""transformers: the Trainer that models of the hub are trained with."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from benchmarks.task import LOG_EVERY, MAX_NORM, Task

__all__ = ["train"]


def train(task: Task) -> None:
    """Train for one epoch."""
    switches = task.switches
    network = task.network()
    optimizer = task.optimizer(network.parameters())
    accuracy = task.accuracy() if switches.accuracy else None

    class Classifying(Trainer):
        def compute_loss(
            self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **rest: Any
        ) -> Tensor:
            logits = model(inputs["inputs"])
            if accuracy is not None:
                accuracy.update(logits.detach(), inputs["targets"])
            return task.loss(logits, inputs["targets"])

    def collate(rows: Any) -> dict[str, Tensor]:
        inputs, targets = task.clock(rows)
        return {"inputs": inputs, "targets": targets}

    arguments = TrainingArguments(
        output_dir=str(task.folder),
        num_train_epochs=1,
        per_device_train_batch_size=task.batch_size,
        max_grad_norm=MAX_NORM if switches.clip else 0.0,
        logging_strategy="steps" if switches.log is not None else "no",
        logging_steps=LOG_EVERY,
        report_to=["tensorboard"] if switches.tensorboard else [],
        save_strategy="no",
        disable_tqdm=not switches.bar,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    schedule = task.schedule(optimizer)  # without one, the Trainer makes its own
    Classifying(
        network, arguments, data_collator=collate, train_dataset=task.rows, optimizers=(optimizer, schedule)
    ).train()
