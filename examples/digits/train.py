#!/usr/bin/env python3
"""Train a digit classifier on the GPUs of several nodes: one process per GPU (a "rank"), all in step.

Every rank holds the whole model. Each batch is split over the ranks; each rank computes the gradient of its
part, the parts are added up over the network, and all take the same step. So any number of ranks gives the
result of a single process, to rounding.

train.sh starts this with srun; `python3 train.py` by itself is a single rank. Where PyTorch is installed, it
computes and exchanges (NCCL between GPUs, gloo without). Otherwise NumPy computes and ranks.py exchanges.
"""

import argparse
import contextlib
import importlib.util
import math
import sys
import time

try:
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f"train.py needs NumPy and scikit-learn ({error}): python3 -m pip install numpy scikit-learn")
try:  # gsub's development cluster, where GPUs are emulated
    from site_configs.devcluster import emugpu
except ImportError:
    emugpu = None
from ranks import JobError, Place, Star

HELD_OUT = 360  # of 1797 digits
MOMENTUM = 0.9


def digits():
    """(images, labels) to train on and (images, labels) held out; the same on every rank and for every seed.

    Images are rows of 64 pixels, 0 to 1. Training has each also moved by one pixel up, down, left and right.
    """
    data = load_digits()
    images, held_images, labels, held_labels = train_test_split(
        data.images / 16.0, data.target, test_size=HELD_OUT, stratify=data.target, random_state=0
    )
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moves = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    images = np.concatenate([framed[:, row : row + 8, column : column + 8] for row, column in moves])
    return (images.reshape(-1, 64), np.tile(labels, len(moves))), (held_images.reshape(-1, 64), held_labels)


class NumpyModel:
    """64 pixels -> `hidden` ReLU units -> 10 digits, trained by gradient descent with momentum."""

    def __init__(self, hidden, lr, seed, place, star):
        self.hidden, self.lr, self.star = hidden, lr, star
        # One flat vector of all parameters, since that is what the ranks exchange; `layers` gives it shape.
        self.parameters = np.zeros(64 * hidden + hidden + hidden * 10 + 10)
        self.velocity = np.zeros_like(self.parameters)
        random = np.random.default_rng(seed)  # the same seed everywhere: all ranks start from the same model
        w1, _, w2, _ = self.layers()
        w1[:] = random.normal(0, math.sqrt(2 / 64), w1.shape)
        w2[:] = random.normal(0, math.sqrt(1 / hidden), w2.shape)

    def layers(self):
        """Weights and biases of the first layer, then of the second, as views."""
        ends = np.cumsum([64 * self.hidden, self.hidden, self.hidden * 10])
        w1, b1, w2, b2 = np.split(self.parameters, ends)
        return w1.reshape(64, self.hidden), b1, w2.reshape(self.hidden, 10), b2

    def gradient(self, images, labels):
        """The loss (cross entropy) summed over these images, and its gradient as one vector."""
        w1, b1, w2, b2 = self.layers()
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores -= scores.max(axis=1, keepdims=True)  # keeps exp() in range, changes nothing else
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        one_hot = np.eye(10)[labels]
        d_scores = np.exp(log_p) - one_hot
        d_hidden = (d_scores @ w2.T) * (hidden > 0)
        parts = images.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_scores, d_scores.sum(axis=0)
        return -(one_hot * log_p).sum(), np.concatenate([part.ravel() for part in parts])

    def step(self, images, labels, batch):
        """Learn from a batch, of which these are this rank's part; returns the loss summed over the part."""
        loss, gradient = self.gradient(images, labels)
        # Sums, divided by the whole batch: exact even where the parts differ in size, unlike a mean of means.
        self.velocity = MOMENTUM * self.velocity - self.lr * self.star.sum(gradient) / batch
        self.parameters += self.velocity
        return loss

    def predict(self, images):
        w1, b1, w2, b2 = self.layers()
        return (np.maximum(images @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)

    def close(self):
        pass


class TorchModel:
    """The same in PyTorch, whose DistributedDataParallel exchanges the gradients."""

    def __init__(self, hidden, lr, seed, place, star):
        import torch
        from torch import distributed, nn

        self.torch, self.distributed, self.size = torch, distributed, place.size
        cuda = torch.cuda.is_available()
        self.device = f"cuda:{place.local_rank % torch.cuda.device_count()}" if cuda else "cpu"
        if cuda:
            torch.cuda.set_device(self.device)  # NCCL takes the current one
        # PyTorch wants an address and a free port of rank 0. The star has connected us: it passes them on.
        if place.rank == 0:
            store = distributed.TCPStore(star.root, 0, place.size, is_master=True, wait_for_workers=False)
            star.sum([store.port])
        else:
            store = distributed.TCPStore(star.root, int(star.sum([0])[0]), place.size)
        backend = "nccl" if cuda else "gloo"
        distributed.init_process_group(backend, store=store, rank=place.rank, world_size=place.size)
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)).to(self.device)
        self.net = nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=MOMENTUM)

    def step(self, images, labels, batch):
        scores, truth = self.net(self._tensor(images)), self._tensor(labels).long()
        loss = self.torch.nn.functional.cross_entropy(scores, truth, reduction="sum")
        self.optimizer.zero_grad()
        (loss * self.size / batch).backward()  # DDP averages over ranks: this makes it a mean over the batch
        self.optimizer.step()
        return loss.item()

    def predict(self, images):
        with self.torch.no_grad():
            return self.net.module(self._tensor(images)).argmax(dim=1).cpu().numpy()

    def close(self):
        self.distributed.destroy_process_group()

    def _tensor(self, array):
        return self.torch.as_tensor(array, dtype=self.torch.float32, device=self.device)


def train(model, star, args):
    """Train for args.epochs; rank 0 prints as it goes. Returns the accuracy on the held-out digits."""
    (images, labels), (held_images, held_labels) = digits()
    for epoch in range(1, args.epochs + 1):
        start, loss = time.perf_counter(), 0.0
        order = np.random.default_rng([args.seed, epoch]).permutation(len(labels))  # alike on all ranks
        for first in range(0, len(order), args.batch_size):
            batch = order[first : first + args.batch_size]
            mine = batch[star.rank :: star.size]
            loss += model.step(images[mine], labels[mine], len(batch))
        loss = star.sum([loss])[0] / len(order)
        speed = len(order) / (time.perf_counter() - start)
        if not math.isfinite(loss):
            raise JobError(f"the loss is {loss} in epoch {epoch}: lower --lr (now {args.lr:g})")
        accuracy = np.mean(model.predict(held_images) == held_labels)
        if star.rank == 0:
            line = f"loss {loss:.4f} accuracy {accuracy:.3f} {speed:.0f} samples/s"
            print(f"epoch {epoch}/{args.epochs} {line}", flush=True)
    return accuracy


def emulated_load(gpu):
    """Only the development cluster's GPUs must be told that they work; a real one knows."""
    if emugpu is None or not gpu.isdecimal():
        return contextlib.nullcontext()
    return emugpu.load(util=85, memory_mib=4000, gpus=[int(gpu)])


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=count, default=60, help="passes over the training digits")
    add("--batch-size", type=count, default=64, help="digits per step, over all ranks together")
    add("--lr", type=float, default=0.05, help="learning rate")
    add("--hidden", type=count, default=512, help="hidden units")
    add("--seed", type=count, default=1, help="of the first weights and of the order of the digits")
    add("--min-accuracy", type=float, default=0.0, help="fail when the final accuracy is below")
    add("--backend", choices=["auto", "numpy", "torch"], default="auto", help="auto: torch if installed")
    return parser.parse_args()


def count(text):
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main():
    args = arguments()
    torch = args.backend == "torch" or (args.backend == "auto" and importlib.util.find_spec("torch"))
    place = Place.from_slurm()
    where = f"node {place.node}, local rank {place.local_rank}, GPU {place.gpu}"
    print(f"rank {place.rank} of {place.size}: {where}", flush=True)
    try:
        star = Star(place.rank, place.size, place.meeting)
        model = (TorchModel if torch else NumpyModel)(args.hidden, args.lr, args.seed, place, star)
        with emulated_load(place.gpu):
            accuracy = train(model, star, args)
        model.close()
        star.close()
    except JobError as error:
        raise JobError(f"rank {place.rank} on node {place.node}: {error}") from None
    if place.rank == 0:
        spread = f"{place.size} rank{'s'[: place.size > 1]} on {place.nodes} node{'s'[: place.nodes > 1]}"
        print(f"final accuracy {accuracy:.4f} on {HELD_OUT} held-out digits, {spread}", flush=True)
        if accuracy < args.min_accuracy:
            raise JobError(f"accuracy {accuracy:.4f} is below --min-accuracy {args.min_accuracy:g}")


if __name__ == "__main__":
    try:
        main()
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
