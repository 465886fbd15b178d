"""What each task of GLUE is: its columns, labels and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_ds.tasks.metrics import MetricName

_MNLI_TEXTS = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2"
)
_STS_TEXTS = "index genre filename year old_index source1 source2 sentence1 sentence2"
_ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Attributes:
        name: as GLUE spells it.
        text_a: column of the first text.
        text_b: column of the second text, or None for a task on single sentences.
        label_column: column of the label.
        labels: the labels in the order of their classes; empty for a regression.
        metrics: the official metrics.
        best_by: the metric that finds the best checkpoint.
        headers: the header lines of the official files, as columns: those with labels first.
        bare_columns: columns of the official files that have labels and no header; None: all have one.
        uid_column: column with the number of an example in test files.
        skips_short_lines: whether lines with too few columns are left out and counted: the official file has some.
    """

    name: str
    text_a: str
    text_b: str | None
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[MetricName, ...]
    best_by: MetricName
    headers: tuple[tuple[str, ...], ...]
    bare_columns: tuple[str, ...] | None = None
    uid_column: str = "index"
    skips_short_lines: bool = False

    @property
    def is_regression(self) -> bool:
        """Whether labels are scores."""
        return not self.labels

    @property
    def num_classes(self) -> int:
        """Outputs of the model's head: 1 for a regression."""
        return len(self.labels) or 1

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Columns with text."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)


def _columns(*headers: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(header.split(" ")) for header in headers)


GLUE_TASKS: dict[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            "MNLI",
            "sentence1",
            "sentence2",
            "gold_label",
            # Megatron's order.
            ("contradiction", "entailment", "neutral"),
            ("accuracy",),
            "accuracy",
            _columns(
                f"{_MNLI_TEXTS} label1 gold_label",
                f"{_MNLI_TEXTS} label1 label2 label3 label4 label5 gold_label",
                _MNLI_TEXTS,
            ),
        ),
        GlueTask(
            "QQP",
            "question1",
            "question2",
            "is_duplicate",
            ("0", "1"),
            ("accuracy", "f1"),
            "accuracy",
            _columns("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2"),
            uid_column="id",
            skips_short_lines=True,
        ),
        GlueTask(
            "QNLI",
            "question",
            "sentence",
            "label",
            _ENTAILMENT,
            ("accuracy",),
            "accuracy",
            _columns("index question sentence label", "index question sentence"),
        ),
        GlueTask(
            "SST-2",
            "sentence",
            None,
            "label",
            ("0", "1"),
            ("accuracy",),
            "accuracy",
            _columns("sentence label", "index sentence"),
        ),
        GlueTask(
            "CoLA",
            "sentence",
            None,
            "label",
            ("0", "1"),
            ("matthews",),
            "matthews",
            _columns("index sentence"),
            bare_columns=("source", "label", "mark", "sentence"),
        ),
        GlueTask(
            "MRPC",
            "#1 String",
            "#2 String",
            "Quality",
            ("0", "1"),
            ("accuracy", "f1"),
            "accuracy",
            (
                ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
                ("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
            ),
        ),
        GlueTask(
            "RTE",
            "sentence1",
            "sentence2",
            "label",
            _ENTAILMENT,
            ("accuracy",),
            "accuracy",
            _columns("index sentence1 sentence2 label", "index sentence1 sentence2"),
        ),
        GlueTask(
            "STS-B",
            "sentence1",
            "sentence2",
            "score",
            (),
            ("pearson", "spearman"),
            "pearson",
            _columns(f"{_STS_TEXTS} score", _STS_TEXTS),
        ),
        GlueTask(
            "WNLI",
            "sentence1",
            "sentence2",
            "label",
            ("0", "1"),
            ("accuracy",),
            "accuracy",
            _columns("index sentence1 sentence2 label", "index sentence1 sentence2"),
        ),
    )
}
