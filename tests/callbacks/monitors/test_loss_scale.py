"""LossScaleMonitor: the scales of a loop by hand, also after a resume."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from lightlib.callbacks import History, LambdaCallback, LossScaleMonitor
from lightlib.errors import ArgumentTypeError, MisconfigurationException
from lightlib.precision import MixedPrecision
from tests.runs.plain import Net, Rows, batches, network, quiet_trainer, same_weights

pytestmark = pytest.mark.filterwarnings("ignore:precision='16-mixed' computes in float16 on the CPU")
SCALER = {"init_scale": 1024.0, "growth_interval": 2, "hysteresis": 2}


def data():
    """Eight batches, of which the third, fourth and fifth overflow."""
    return [(x * 1e5, y) if i in (2, 3, 4) else (x, y) for i, (x, y) in enumerate(batches(8))]


def by_hand():
    """The scale that each step used, by number of the step, and the network afterwards."""
    net, used, step, left, good, scale = network(), {}, 1, 2, 0, 1024.0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in data():
        used.setdefault(step, scale)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(net(x), y)
        (loss * scale).backward()
        for parameter in net.parameters():
            parameter.grad /= scale
        if all(parameter.grad.isfinite().all() for parameter in net.parameters()):
            optimizer.step()
            step, good = step + 1, good + 1
            if good == 2:
                scale, good, left = scale * 2, 0, 2
        else:
            good, scale, left = 0, scale / 2 if left == 1 else scale, max(1, left - 1)
    return used, net


def fit(every=1, path=None, **arguments):
    module, logger = Net(), Rows()
    trainer = quiet_trainer(
        plugins=MixedPrecision("16-mixed", scaler=SCALER),
        log_every_n_steps=every,
        **{"callbacks": [LossScaleMonitor()], "logger": logger, **arguments},
    )
    trainer.fit(module, data(), ckpt_path=path)
    return module, [(step, row["loss_scale"]) for step, row in logger.rows if "loss_scale" in row], trainer


def test_the_scales_of_a_loop_by_hand():
    used, net = by_hand()
    assert len(set(used.values())) == 3
    module, rows, trainer = fit()
    assert rows == list(used.items())
    assert trainer.global_step == 5
    assert same_weights(module.net, net)
    assert trainer.callback_metrics["loss_scale"] == rows[-1][1]


def test_every_second_step():
    used, _ = by_hand()
    assert fit(every=2)[1] == [(step, scale) for step, scale in used.items() if step % 2 == 0]


def test_a_resumed_run_logs_the_rest(tmp_path):
    counts = []

    def save(trainer, *_):
        counts.append(len(trainer.logger.rows))
        trainer.save_checkpoint(tmp_path / f"{len(counts)}.ckpt")

    whole, rows, _ = fit(callbacks=[LossScaleMonitor(), LambdaCallback(on_train_batch_end=save)])
    assert counts == [1, 2, 3, 3, 3, 3, 4, 5]  # the third step overflowed three times
    for number, count in enumerate(counts, 1):
        module, rest, _ = fit(path=tmp_path / f"{number}.ckpt")
        assert rest == rows[count:]
        assert same_weights(module, whole)


def test_without_it_nothing_is_logged():
    assert fit(callbacks=[])[1] == []


def test_history_alone_receives_the_scales():
    history = History()
    fit(logger=False, callbacks=[LossScaleMonitor(), history])
    assert history.values("loss_scale") == [*by_hand()[0].values()]


def test_what_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"LossScaleMonitor\(name=3 \(int\)\)"):
        LossScaleMonitor(3)
    with pytest.raises(MisconfigurationException, match="precision='bf16-mixed', and lightlib scales no loss"):
        quiet_trainer(precision="bf16-mixed", callbacks=[LossScaleMonitor()], logger=Rows()).fit(Net(), batches(1))
    with pytest.raises(MisconfigurationException, match="has nowhere to log to"):
        quiet_trainer(precision="16-mixed", callbacks=[LossScaleMonitor()]).fit(Net(), batches(1))
