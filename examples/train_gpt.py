"""Train a GPT of 10 M parameters on words with DistributedDataParallel; nothing here knows of Polyrhythm.

torchrun --standalone --nproc-per-node 2 examples/train_gpt.py --text train.txt --test test.txt
polyrhythm run --nproc-per-node 2 --policy diloco:16 examples/train_gpt.py --text train.txt --test test.txt

The texts are any two in UTF-8 with blanks between words, such as WikiText-2's (docs/guides/language-model.md says where
they come from). The first rank prints how long its steps take, and at the end the perplexity that its model had on the
way: it keeps copies of the parameters, so that no evaluation holds the steps up.
"""

# mypy: allow-untyped-calls
import argparse
import math
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EVALUATION_BATCH = 32


class Block(nn.Module):
    """Causal attention and a layer of perceptrons, each added to what it reads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Logits of each next word, of shape (batch, context, vocabulary), from words of shape (batch, context)."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions.weight[: words.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def words_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").replace("\n", " <eos> ").split()


def pieces(words: list[str], known: dict[str, int], context: int, most: int | None) -> TensorDataset:
    """Consecutive pieces of the text, each with the words that stand one further."""
    unknown = known.get("<unk>", 0)
    numbers = torch.tensor([known.get(word, unknown) for word in words])
    count = min((len(numbers) - 1) // context, most or len(numbers))
    inputs, targets = numbers[: count * context], numbers[1 : count * context + 1]
    return TensorDataset(inputs.view(count, context), targets.view(count, context))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of a word."""
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def perplexity(model: nn.Module, data: TensorDataset) -> float:
    losses = [loss_of(model, x, y).item() * len(x) for x, y in DataLoader(data, EVALUATION_BATCH)]
    return math.exp(sum(losses) / len(data))


def as_bfloat16(
    _: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """A communication hook: gradients are summed up in bfloat16. Torch's own of this kind wants NCCL."""
    gradients = bucket.buffer()
    halves = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(halves, async_op=True).get_future()
    return future.then(lambda done: gradients.copy_(done.value()[0]))  # type: ignore[no-any-return]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="what is learned from")
    parser.add_argument("--test", type=Path, required=True, help="what it is judged by")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, help="pieces of the text to learn from; all by default")
    parser.add_argument("--test-samples", type=int, default=64, help="pieces of the test's text")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="words that are told apart")
    parser.add_argument("--context", type=int, default=64, help="words of a piece")
    parser.add_argument("--batch-size", type=int, default=4, help="pieces of a step of one worker")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps over which the rate rises")
    parser.add_argument("--bf16", action="store_true", help="sum gradients up in bfloat16")
    parser.add_argument("--log-every", type=int, default=10, help="steps from one printed line to the next")
    parser.add_argument("--evaluate", type=int, nargs="*", default=[], metavar="STEP", help="perplexity after these")
    return parser.parse_args()


def main() -> None:
    """Train; the first rank prints."""
    args = options()
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    text = words_of(args.text)
    known = {word: number for number, (word, _) in enumerate(Counter(text).most_common(args.vocabulary))}
    data = pieces(text, known, args.context, args.samples)
    held_out = pieces(words_of(args.test), known, args.context, args.test_samples)
    torch.manual_seed(1)
    model = GPT(len(known), args.context, args.width, args.heads, args.layers)
    ddp = DistributedDataParallel(model)
    if args.bf16:
        ddp.register_comm_hook(None, as_bfloat16)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warmup))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    step, kept, start = 0, list[tuple[int, Tensor]](), time.perf_counter()
    if first:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{count} parameters, {len(data)} pieces of {args.context} words", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(ddp, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if first and (step % args.log_every == 0 or step in args.evaluate):
                print(f"step {step}: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}", flush=True)
            if first and step in args.evaluate:
                kept.append((step, parameters_to_vector(model.parameters()).detach().clone()))
    seconds = time.perf_counter() - start
    if first and step not in args.evaluate:
        kept.append((step, parameters_to_vector(model.parameters()).detach().clone()))
    dist.destroy_process_group()
    if first:
        print(f"trained: {step} steps, {seconds:.3f} s", flush=True)
        for at, vector in kept:
            vector_to_parameters(vector, model.parameters())
            print(f"after step {at}: perplexity {perplexity(model, held_out):.2f}", flush=True)


if __name__ == "__main__":
    main()
