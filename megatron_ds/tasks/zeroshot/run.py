"""One evaluation from its start on every process to its numbers."""

from __future__ import annotations

from megatron_ds.engine.distributed import stop_distributed
from megatron_ds.generation.inference_model import InferenceModel
from megatron_ds.generation.load import join, load_model
from megatron_ds.generation.scoring import WindowScore, score_windows
from megatron_ds.tasks.zeroshot.finetuned import evaluate_finetuned
from megatron_ds.tasks.zeroshot.harness import evaluate_harness, task_manager
from megatron_ds.tasks.zeroshot.job import EvaluationJob, FinetunedTask, HarnessTask, Progress, TextTask, ValidationTask
from megatron_ds.tasks.zeroshot.results import TaskResult
from megatron_ds.tasks.zeroshot.shared_model import SharedModel
from megatron_ds.tasks.zeroshot.validation import evaluate_validation


def run_evaluation(job: EvaluationJob, progress: Progress) -> list[TaskResult]:
    """Loads the model and evaluates it. Called by every process.

    Args:
        job: what to do.
        progress: shows how far it is.

    Returns:
        The numbers; of the harness's tasks, on rank 0 only.

    Raises:
        MegatronDsError: the checkpoint or the data can't be read, or a task can't be run.
    """
    mpu, task, resets = join(job.tp_size, job.pp_size), job.task, {}
    # Unknown names are told before a large model is loaded.
    manager = task_manager(task) if isinstance(task, HarnessTask) and mpu.global_rank == 0 else None
    if isinstance(task, ValidationTask):
        data = task.run.data
        resets = {"reset_position_ids": data.reset_position_ids, "reset_attention_mask": data.reset_attention_mask}
    model = load_model(job.checkpoint, job.precision, mpu, **resets)
    if isinstance(task, TextTask):
        results = evaluate_texts(model, task, job.batch_size, progress)
    elif isinstance(task, ValidationTask):
        results = evaluate_validation(model, task, job.batch_size, progress)
    elif isinstance(task, FinetunedTask):
        results = evaluate_finetuned(model, task, job.batch_size, progress)
    else:
        shared = SharedModel(model, task.tokenizer, job.batch_size, progress)
        results = []
        if shared.speaks:
            results = evaluate_harness(shared, model.config, task, manager)
            shared.end()
        else:
            shared.serve()
    stop_distributed()
    return results


def evaluate_texts(model: InferenceModel, task: TextTask, batch_size: int, progress: Progress) -> list[TaskResult]:
    """The numbers of a task, on all ranks. Every rank of every replica calls it.

    Args:
        model: this rank's part of a replica.
        task: the task.
        batch_size: windows that a replica runs together.
        progress: shows how far it is.
    """
    windows = [window for example in task.examples for window in example]
    with progress(task.name, len(windows)) as advance:
        scores = iter(score_windows(model, windows, batch_size, advance))
    return [task.summarize([sum((next(scores) for _ in example), WindowScore()) for example in task.examples])]
