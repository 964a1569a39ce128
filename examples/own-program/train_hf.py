"""Hugging Face's Trainer with FSDP2, as a program of one's own; started by torchrun.

    torchrun train_hf.py --steps 200        # in a pod: examples/own-program/hf-trainer.yaml

A tiny Llama from a config learns which number follows which. To train yours, replace `model()`
and `Sequences`; the rest is what a gang of pods needs: sharding as the job says, resuming, and a
checkpoint at SIGTERM on which all ranks agree.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

LENGTH, VOCABULARY = 32, 64
RESHARD = {"optim_grads": False, "optim_grads_params": True}
"""The job's strategy -> FSDP2's reshard_after_forward."""


def fsdp_config() -> dict[str, Any]:
    """Sharding as the job says. Ends the program where Trainer cannot do it."""
    engine = os.environ.get("MFSDP_ENGINE", "torch_fsdp2")
    strategy = os.environ.get("MFSDP_SHARDING_STRATEGY", "optim_grads_params")
    replicas = os.environ.get("MFSDP_DATA_PARALLEL_REPLICAS", "1")
    if engine != "torch_fsdp2" or strategy not in RESHARD or replicas != "1":
        sys.exit(
            f"train_hf.py cannot do {engine} {strategy} with {replicas} replicas: set "
            f"useTorchFSDP2 to true, dataParallelShardingStrategy to one of {', '.join(RESHARD)}, "
            "and leave dataParallelReplicas at 1"
        )
    return {
        "version": 2,
        "reshard_after_forward": RESHARD[strategy],
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def model() -> LlamaForCausalLM:
    """The model to train, the same on every rank."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads))


class Sequences(Dataset):
    """Sequences in which x is followed by 5x + 3 modulo VOCABULARY, from random starts."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = [index * 7919 % VOCABULARY]
        while len(tokens) < LENGTH:
            tokens.append((5 * tokens[-1] + 3) % VOCABULARY)
        return {"input_ids": torch.tensor(tokens), "labels": torch.tensor(tokens)}


class Gang(TrainerCallback):
    """What Trainer leaves to its user: that the model is sharded, and that all ranks stop at once.

    On a machine without GPUs accelerate ignores FSDP and would train DDP without a word.
    """

    def __init__(self) -> None:
        self.asked = self.stopped = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.asked = True

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        **_: object,
    ) -> None:
        """Before any step: every parameter is a shard."""
        if not all(isinstance(parameter, DTensor) for parameter in model.parameters()):
            sys.exit("the model is not sharded: accelerate's FSDP needs GPUs (gpusPerNode)")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """SIGTERM on any rank, often of one evicted pod, ends all after a checkpoint."""
        asked = torch.tensor(float(self.asked), device=args.device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        if asked:
            control.should_save = control.should_training_stop = self.stopped = True


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--output", default=os.environ.get("MFSDP_CHECKPOINT_DIR", "checkpoints"))
    arguments = parser.parse_args()
    # On all ranks: each of them looks there for a checkpoint.
    Path(arguments.output).mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.is_available()
    gang = Gang()
    training = TrainingArguments(
        output_dir=arguments.output,
        max_steps=arguments.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        bf16=gpu,
        use_cpu=not gpu,
        fsdp=True,
        fsdp_config=fsdp_config(),
        save_steps=arguments.save_every,
        save_total_limit=2,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model(), training, train_dataset=Sequences(), callbacks=[gang])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output))
    # Left to the interpreter's end, the threads of the process group may abort it.
    dist.destroy_process_group()
    if gang.stopped:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
