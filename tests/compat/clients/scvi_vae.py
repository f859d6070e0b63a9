"""scvi-tools: a variational autoencoder on counts of 300 cells, its losses and latent space."""

import json
import logging
import warnings

import anndata
import numpy as np
import scvi

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    scvi.settings.seed = 5
    scvi.settings.dl_num_workers = 0
    random = np.random.default_rng(2)
    counts = random.poisson(random.gamma(2.0, 1.0, size=(1, 40)), size=(300, 40)).astype(np.float32)
    cells = anndata.AnnData(counts)
    cells.obs["batch"] = np.repeat(["one", "two", "three"], 100)
    scvi.model.SCVI.setup_anndata(cells, batch_key="batch")
    model = scvi.model.SCVI(cells, n_hidden=16, n_latent=4)
    model.train(
        max_epochs=4,
        accelerator="cpu",
        batch_size=64,
        train_size=0.8,
        check_val_every_n_epoch=1,
        enable_progress_bar=False,
    )
    history = {name: frame.iloc[:, 0].astype(float).tolist() for name, frame in model.history.items()}
    print(
        json.dumps(
            {
                "loss": history["elbo_train"][-1],
                "names": sorted(history),
                "elbo": history["elbo_train"],
                "validation": history["elbo_validation"],
                "latent": float(model.get_latent_representation().sum()),
            }
        )
    )
