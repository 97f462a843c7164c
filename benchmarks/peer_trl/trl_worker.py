"""TRL's side, run by the Python of its own environment with our `src/` on the path.

    .venvs/trl/bin/python trl_worker.py JOB.json

One turn: TRL generates by itself and asks a reward function, which plays the reply on the board.
Several turns: its `rollout_func`, which generates each turn with the trainer's own generation and
marks the environment's words as not trained (`env_mask`). Either way prompts, replies and rewards are
made by Stepwell's agent and environment, as on our side; checked: the first prompt has the same ids.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from job import Clock, Job, lake_agent
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from stepwell.core import Task
from stepwell.envs import EnvBatch
from stepwell.rendering import Conversation, Message, Renderer, load_tokenizer

MICROBATCH = 64  # trajectories of one pass: 16, 32 and 128 took 7 to 12 % more CPU time


class Boards:
    """Boards behind prompts, and what replies lead to."""

    def __init__(self, job: Job) -> None:
        self.agent = lake_agent(job)
        self.envs = EnvBatch("frozenlake", job.options, job.num_trajectories)
        self.renderer = Renderer(load_tokenizer(job.model))
        self.by_text: dict[str, Task] = {}
        self.rows = [self._row(board) for board in job.boards()]
        self.successes: list[float] = []

    def _row(self, board: Task) -> dict[str, Any]:
        """A row of the data set; the board's text names the board."""
        text = self.agent.first_prompt(self.envs.reset([board])[0].observation)
        self.by_text[text] = board
        system = {"role": "system", "content": self.agent.system_prompt()}
        return {"prompt": [system, {"role": "user", "content": text}]}

    def reset(self, prompts: list[Any]) -> None:
        """Put one board behind every prompt."""
        self.envs.reset([self.by_text[prompt[-1]["content"]] for prompt in prompts])

    def rewards(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        """Reward function of the setup with one turn."""
        self.reset(prompts)
        replies = [self.agent.read(completion[-1]["content"]).actions for completion in completions]
        turns = self.envs.step(range(len(replies)), replies)
        outcomes = [float(bool(turn.info["success"])) for turn in turns]
        self.successes.append(sum(outcomes) / len(outcomes))
        return outcomes

    def rollout(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """Rollout function of the setup with several turns."""
        self.reset(prompts)
        talks = [
            Conversation(
                self.renderer, [Message.system(prompt[0]["content"]), Message.user(prompt[1]["content"])]
            )
            for prompt in prompts
        ]
        first = [talk.state.prompt_ids.tolist() for talk in talks]
        whole, masks = [list(ids) for ids in first], [[] for _ in talks]
        outcomes = [0.0] * len(talks)
        live = list(range(len(talks)))
        while live:
            asked = [talks[i].state.prompt_ids.tolist() for i in live]
            sampled, _ = trainer._generate_single_turn(asked, None, {}, 1)
            texts = trainer.processing_class.batch_decode(sampled, skip_special_tokens=True)
            turns = self.envs.step(live, [self.agent.read(text).actions for text in texts])
            for i, prompt_ids, ids, turn in zip(live, asked, sampled, turns, strict=True):
                masks[i] += [0] * (len(prompt_ids) - len(whole[i])) + [1] * len(ids)
                whole[i] = prompt_ids + ids
                outcomes[i] = float(bool(turn.info["success"]))
                if not turn.is_over:
                    talks[i].record_action(ids)
                    talks[i].add(Message.user(self.agent.next_prompt(turn.observation)))
            live = [i for i, turn in zip(live, turns, strict=True) if not turn.is_over]
        self.successes.append(sum(outcomes) / len(outcomes))
        return {
            "prompt_ids": first,
            "completion_ids": [ids[len(start) :] for ids, start in zip(whole, first, strict=True)],
            "logprobs": None,
            "env_mask": masks,
            "outcome": outcomes,
        }


class TimedTrainer(GRPOTrainer):
    """GRPO as it is, with a clock around its two halves."""

    clock: Clock

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        begun = time.perf_counter()
        result = super()._generate_and_score_completions(inputs)
        self.clock.parts["sampling"] += time.perf_counter() - begun
        return result

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        sampled, logprobs = super()._generate_single_turn(*args, **kwargs)
        self.clock.parts["of which generate"] += time.perf_counter() - begun
        self.clock.num_tokens += sum(len(ids) for ids in sampled)
        return sampled, logprobs


class Ends(TrainerCallback):
    """Notes when each update ended, counted from the start of training."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.ends.append(time.perf_counter() - self.started)


def outcome_of(outcome: list[float], **_: Any) -> list[float]:
    """Reward function of the setup with several turns: what the rollout saw."""
    return outcome


def check_prompts(boards: Boards, tokenizer: Any) -> None:
    """TRL's chat template gives the very ids that our renderer gives."""
    prompt = boards.rows[0]["prompt"]
    theirs = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    ours = boards.renderer.start([Message.system(prompt[0]["content"]), Message.user(prompt[1]["content"])])
    assert list(theirs) == ours.prompt_ids.tolist(), "both sides must be asked the same"


def settings(job: Job) -> GRPOConfig:
    """The fastest sensible settings on a CPU; what decides the maths is equal to ours."""
    size = job.num_trajectories
    num_passes = -(-size // MICROBATCH)
    return GRPOConfig(
        output_dir=job.out,
        # the maths
        max_steps=job.num_updates,
        per_device_train_batch_size=size // num_passes,
        gradient_accumulation_steps=num_passes,
        steps_per_generation=num_passes,
        num_iterations=1,
        num_generations=job.group_size,
        max_completion_length=job.max_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="group",
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        adam_beta2=job.beta2,
        weight_decay=0.0,
        max_grad_norm=job.grad_clip,
        shuffle_dataset=False,
        seed=job.seed,
        # nothing that costs time
        use_cpu=True,
        bf16=False,
        use_vllm=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        log_completions=False,
    )


def main(job: Job) -> None:
    torch.set_num_threads(job.num_threads)
    boards = Boards(job)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    check_prompts(boards, tokenizer)
    several = job.num_turns > 1
    trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32),
        reward_funcs=outcome_of if several else boards.rewards,
        args=settings(job),
        train_dataset=Dataset.from_list(boards.rows),
        processing_class=tokenizer,
        rollout_func=boards.rollout if several else None,
    )
    trainer.clock = Clock([], {"sampling": 0.0, "of which generate": 0.0, "learning": 0.0}, boards.successes)
    trainer.add_callback(Ends(trainer.clock))
    trainer.train()
    clock = trainer.clock
    clock.parts["learning"] = clock.ends[-1] - clock.parts["sampling"]
    trainer.save_model(f"{job.out}/model")
    clock.write(job)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]))
