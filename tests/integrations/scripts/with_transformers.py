# mypy: ignore-errors
"""Hugging Face's Trainer as it is; the argument is what there is besides."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WHAT = sys.argv[1]


class Words(Dataset):
    """The class is the half of the vocabulary that the first word is from."""

    def __init__(self, samples, seed):
        self.x = torch.randint(0, 64, (samples, 12), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"input_ids": self.x[index], "labels": int(self.x[index, 0] > 31)}


torch.manual_seed(0)
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
arguments = TrainingArguments(
    output_dir="made",
    per_device_train_batch_size=8,
    num_train_epochs=3,
    learning_rate=5e-3,
    warmup_steps=5,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=8,
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
    gradient_accumulation_steps=3 if WHAT == "accumulated" else 1,
)
trainer = Trainer(
    model=BertForSequenceClassification(BertConfig(vocab_size=64, **shape)),
    args=arguments,
    train_dataset=Words(256, 1),
    eval_dataset=Words(64, 2),
)
trainer.train()
with open(f"weights.{arguments.process_index}", "w") as out:
    print(*[x for p in trainer.model.parameters() for x in p.detach().flatten().tolist()], file=out)
    print(trainer.state.global_step, trainer.evaluate()["eval_loss"], file=out)
