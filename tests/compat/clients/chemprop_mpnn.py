"""chemprop: a message-passing network on 24 molecules, tested with the best checkpoint."""

import json
import logging
import warnings

import numpy as np
from chemprop import data, featurizers, models, nn
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

PARTS = ("C", "CC", "CCO", "c1ccccc1", "C(=O)O", "CN")

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    pl.seed_everything(3)
    smiles = [f"{first}{second}" for first in ("C", "N", "O", "CC") for second in PARTS]
    targets = np.array([[float(len(one))] for one in smiles])
    points = [data.MoleculeDatapoint.from_smi(one, y) for one, y in zip(smiles, targets, strict=True)]
    featurizer = featurizers.SimpleMoleculeMolGraphFeaturizer()
    train, val = (data.MoleculeDataset(part, featurizer) for part in (points[:18], points[18:]))
    scaler = train.normalize_targets()
    val.normalize_targets(scaler)
    train_loader = data.build_dataloader(train, batch_size=6, num_workers=0, seed=0)
    val_loader = data.build_dataloader(val, batch_size=6, num_workers=0, shuffle=False)
    output = nn.UnscaleTransform.from_standard_scaler(scaler)
    ffn = nn.RegressionFFN(input_dim=32, hidden_dim=16, output_transform=output)
    model = models.MPNN(nn.BondMessagePassing(d_h=32), nn.MeanAggregation(), ffn, metrics=[nn.metrics.RMSE()])
    keep = ModelCheckpoint("checkpoints", "best-{epoch}-{val_loss:.2f}", "val_loss", mode="min", save_last=True)
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_loader, val_loader)
    loss = trainer.callback_metrics["train_loss_epoch"].item()
    tested = trainer.test(dataloaders=val_loader, weights_only=False, verbose=False)
    guesses = trainer.predict(model, val_loader)
    again = models.MPNN.load_from_checkpoint(keep.best_model_path)
    print(
        json.dumps(
            {
                "loss": loss,
                "validation": keep.best_model_score.item(),
                "tested": tested,
                "predicted": sum(one.sum().item() for one in guesses),
                "loaded": again.predictor.output_transform.scale.item(),
            }
        )
    )
