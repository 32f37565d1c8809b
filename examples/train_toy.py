"""Train the toy: 1.5 M weights that read a text with facts in it and answer questions about them.

  torchrun --nproc-per-node 2 examples/train_toy.py --out build/toy      an hour on two cores
  (the same line again)                                                  stopped? it goes on where it was
  python examples/train_toy.py --out build/toy                           on one core, half the text in each step
  prfaas recall --model build/toy                                        examine what came out

The text is made up as it goes (prfaas_ref/model/facts.py), so no document is seen twice; the model is the toy's, run by
its differentiable twin (prfaas_ref/model/training.py). What made it learn in so little time:

* notes first: "blue lamp 48. red door 12. blue lamp 48. ", short, dense, and nothing to learn but which code is whose;
* then notes mixed with sentences and questions about them, and longer texts with more facts whenever that goes well;
* things that share their colour or their noun with others, so that half a name is not enough;
* the digits of answers, a few percent of the text, weigh twice as much as all the rest of it together, and the digits
  that nobody can foresee, a fact's own, weigh nothing;
* Muon for the matrices inside the layers (orthogonalised momentum), AdamW for the rest;
* decays spread over heads and channels, from "forgets within a word" to "keeps for thousands of tokens".

What is kept, and shipped, is a running average of the weights, in bfloat16.
"""

import argparse
import csv
import math
import os
import sys
import time
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F
from tqdm import tqdm

from prfaas_ref.model import facts
from prfaas_ref.model.checkpoint import save_model
from prfaas_ref.model.config import TOY
from prfaas_ref.model.hybrid import HybridModel
from prfaas_ref.model.training import Weights, logits
from prfaas_ref.model.weights import random_weights, stays_float32
from prfaas_ref.serving import recall

EXAMINED = {512: 4, 1024: 4, 2048: 2, 4096: 1}
"""Documents per examination, by length."""

COLUMNS = ("step", "seconds", "level", "answer_loss", "text_loss", "digits_right", *(f"at_{T}" for T in EXAMINED))
RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


# Practice -------------------------------------------------------------------------------------------------------------


LEVELS = (256, 256, 512, 1024, 2048, 4096)
"""Sequence lengths, from the first practice to the last. The first level has notes only."""

PASSED = 0.88
"""Share of digits right, on average of late, that opens the next level."""


def practice(random: Random, level: int) -> facts.Lesson:
    """One sequence. Where there is room, mostly a document and then questions, of up to 24 facts."""
    T, form = LEVELS[level], random.random()
    if level == 0 or form < 0.1:
        return facts.notes(random, T, random.randint(2, 3 + T // 128))
    if form < (0.6 if T == 256 else 0.3):
        return facts.dialogue(random, T, random.randint(2, 2 + T // 128))
    n_facts = random.randint(2, min(T // 80, 24))
    return facts.lesson(random, T, n_facts, min(n_facts, T // 100))


def batch(lessons: list[facts.Lesson]) -> tuple[Tensor, Tensor]:
    """Tokens and their kinds, each [B, T]."""
    return torch.tensor([one.tokens for one in lessons]), torch.tensor([one.kinds for one in lessons])


def losses(weights: Weights, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss of the answers' digits and of the plain text, in nats, and the share of those digits that are right."""
    scores = logits(weights, tokens, TOY).float()
    wanted = F.pad(tokens[:, 1:], (0, 1)).flatten()
    kind = F.pad(kinds[:, 1:], (0, 1), value=facts.CHANCE).flatten()
    each = F.cross_entropy(scores, wanted, reduction="none")
    answer = kind == facts.ANSWER
    right = (scores[answer].argmax(-1) == wanted[answer]).float().mean()
    return each[answer].mean(), each[kind == facts.PLAIN].mean(), right


def examine(weights: Weights, step: int) -> list[float]:
    """The share of answers with every digit right, as `prfaas recall` counts them, by length; 8 facts a document."""
    model, shares = HybridModel(TOY, weights), []
    for T, n_documents in EXAMINED.items():
        right = [
            recall.says(answers["accuracy"].tokens) == str(fact.code)
            for i in range(n_documents)
            for text in [facts.document(Random(f"examination {step} {T} {i}"), T, 8)]
            for fact, answers in zip(text.facts, recall.ask_alone(model, text), strict=True)
        ]
        shares.append(sum(right) / len(right))
    return shares


# Weights and optimisers -----------------------------------------------------------------------------------------------


def initial_weights(seed: int) -> Weights:
    """Random, the residual branches scaled down by the depth, the heads' decays spread."""
    weights = random_weights(TOY, torch.float32, seed)
    for name, tensor in weights.items():
        if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            tensor *= (2 * len(TOY.layer_kinds)) ** -0.5
        elif name.endswith("A_log"):
            tensor.copy_(torch.linspace(math.log(0.1), math.log(4.0), tensor.numel()).view_as(tensor))
        elif "embed" in name:
            tensor *= 0.5
    return {name: tensor.requires_grad_() for name, tensor in weights.items()}


class Muon(torch.optim.Optimizer):
    """Momentum, each step made nearly orthogonal by Newton and Schulz's iteration, matrices of one shape together."""

    def __init__(self, matrices: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.02) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(matrix.shape, []).append(matrix)
            for shape, matrices in by_shape.items():
                steps = orthogonal(torch.stack([self.with_momentum(m, group["momentum"]) for m in matrices]))
                for matrix, step in zip(matrices, steps, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(step, alpha=-group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5)

    def with_momentum(self, matrix: Tensor, momentum: float) -> Tensor:
        """Nesterov's."""
        mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(mean, momentum)


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with all singular values moved near 1."""
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.transpose(1, 2)).transpose(1, 2)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.float()


def optimisers(weights: Weights) -> list[torch.optim.Optimizer]:
    matrices = [t for name, t in weights.items() if "layers" in name and t.dim() == 2]
    embeddings = [t for name, t in weights.items() if "layers" not in name and t.dim() == 2]
    rest = [t for t in weights.values() if t.dim() != 2]
    decayed = [{"params": embeddings, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return [Muon(matrices, lr=0.02), torch.optim.AdamW(decayed, lr=3e-3, betas=(0.9, 0.98))]


# Training -------------------------------------------------------------------------------------------------------------


class Training:
    """Everything that a step changes, and its file."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed, self.step, self.seconds = out, seed, 0, 0.0
        self.level, self.right = 0, torch.zeros(())
        self.weights = initial_weights(seed)
        self.average = {name: t.detach().clone() for name, t in self.weights.items()}
        self.optimisers = optimisers(self.weights)
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimisers]

    def advance(self, steps: int, batch_tokens: int, cooldown: float) -> list[float]:
        """One step of `steps`. Returns its answer loss, text loss and share of digits right."""
        began = time.monotonic()
        factor = min(1.0, (self.step + 1) / 100, (steps - self.step) / (steps * cooldown))
        for optimiser, rates in zip(self.optimisers, self.rates, strict=True):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        random = Random(f"level {self.seed} {self.step}")
        level = self.level if random.random() < 0.2 else random.randrange(self.level + 1)
        random = Random(f"practice {self.seed} {self.step} {RANK}")
        lessons = [practice(random, level) for _ in range(max(1, batch_tokens // LEVELS[level]))]
        answer, text, right = losses(self.weights, *batch(lessons))
        (answer + 0.5 * text).backward()
        right = right.detach()
        if PROCESSES > 1:
            right = self.share_out(right)
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            keep = min(0.99, self.step / (self.step + 10))
            torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), 1 - keep)
        self.right = self.right.lerp(right, 0.05)
        if self.right > PASSED and self.level + 1 < len(LEVELS):
            self.level, self.right = self.level + 1, torch.zeros(())
        self.step += 1
        self.seconds += time.monotonic() - began
        return [answer.item(), text.item(), right.item()]

    def share_out(self, right: Tensor) -> Tensor:
        """Make the gradients the average over all processes, each of which practised on its own text; `right` too."""
        gradients = [t.grad for t in self.weights.values()]
        together = torch.cat([right.view(1), *(g.flatten() for g in gradients)])
        dist.all_reduce(together)
        right, *averages = (together / PROCESSES).split([1, *(g.numel() for g in gradients)])
        for gradient, average in zip(gradients, averages, strict=True):
            gradient.copy_(average.view_as(gradient))
        return right[0]

    def save(self) -> None:
        """The whole training, to go on from, and the model as it stands, in bfloat16."""
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "level": self.level,
            "right": self.right,
            "weights": {name: t.detach() for name, t in self.weights.items()},
            "average": self.average,
            "optimisers": [o.state_dict() for o in self.optimisers],
        }
        torch.save(state, self.out / "training.pt.partial")
        (self.out / "training.pt.partial").replace(self.out / "training.pt")
        half = {name: t if stays_float32(name) else t.bfloat16() for name, t in self.average.items()}
        save_model(HybridModel(TOY, half), self.out)

    def resume(self) -> None:
        state = torch.load(self.out / "training.pt", weights_only=True)
        self.step, self.seconds, self.average = state["step"], state["seconds"], state["average"]
        self.level, self.right = state["level"], state["right"]
        with torch.no_grad():
            for name, tensor in self.weights.items():
                tensor.copy_(state["weights"][name])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the checkpoint and the curve go")
    parser.add_argument("--steps", type=int, default=4000, help="steps in all (4000)")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens in a step, per process (4096)")
    parser.add_argument("--cooldown", type=float, default=0.5, help="last part, in which the rate falls (0.5)")
    parser.add_argument("--every", type=int, default=200, help="steps from save to save (200)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # more processes are faster than more threads at these sizes
    if PROCESSES > 1:
        dist.init_process_group("gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    training = Training(args.out, args.seed)
    if (args.out / "training.pt").exists():
        training.resume()
    curve = args.out / "curve.csv"
    if training.step == 0 and RANK == 0:
        curve.write_text(",".join(COLUMNS) + "\n")
    recent: list[list[float]] = []
    bar = tqdm(total=args.steps, initial=training.step, disable=RANK > 0 or not sys.stderr.isatty())
    while training.step < args.steps:
        recent.append(training.advance(args.steps, args.batch_tokens, args.cooldown))
        bar.update()
        if RANK == 0 and (training.step % args.every == 0 or training.step == args.steps):
            means = torch.tensor(recent).mean(0).tolist()
            numbers = [*means, *examine(training.average, training.step)]
            with curve.open("a", newline="") as file:
                row = [training.step, round(training.seconds), training.level, *(f"{x:.4f}" for x in numbers)]
                csv.writer(file).writerow(row)
            training.save()
            bar.set_postfix_str(f"answers {means[2]:.0%} of digits, text {means[1]:.2f} nats")
            recent.clear()
    if PROCESSES > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
