"""Small files in GLUE's own formats: headers, column orders and oddities as in the official ones."""

from __future__ import annotations

from pathlib import Path

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
STS = "index genre filename year old_index source1 source2 sentence1 sentence2"
MNLI_ROW = "{}\t31193\t31193n\tgovernment\t( a )\t( b )\t(ROOT a)\t(ROOT b)\t{}\t{}"
STS_ROW = "{}\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\t{}\t{}"


def tabbed(names: str) -> str:
    return names.replace(" ", "\t")


# name of the task -> lines of its train, dev and test files.
FILES: dict[str, dict[str, list[str]]] = {
    "MNLI": {
        "train": [
            tabbed(f"{MNLI} sentence1 sentence2 label1 gold_label"),
            MNLI_ROW.format(0, "the fox jumps", "the fox") + "\tneutral\tneutral",
            MNLI_ROW.format(1, 'he said "hello', "hello!") + "\tentailment\tentailment",
        ],
        "dev": [
            tabbed(f"{MNLI} sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"),
            MNLI_ROW.format(0, "the fox", "a cafe") + "\tneutral" * 4 + "\tentailment\tcontradiction",
        ],
        "test": [tabbed(f"{MNLI} sentence1 sentence2"), MNLI_ROW.format(9796, "the fox", "a fox")],
    },
    "QQP": {
        "train": [
            tabbed("id qid1 qid2 question1 question2 is_duplicate"),
            "133273\t213221\t213222\thow is the fox?\tthe fox?\t1",
            "402555\t536040\t536041\tis this cut",
            "off?\tyes\t0",
            "360472\t364011\t490273\tis it\thello\t0",
        ],
        "dev": [tabbed("id qid1 qid2 question1 question2 is_duplicate"), "201359\t303345\t303346\twhy\thow\t0"],
        "test": [tabbed("id question1 question2"), "7\twould\tmeaning"],
    },
    "QNLI": {
        "train": [tabbed("index question sentence label"), "0\twhen?\tthe fox\tnot_entailment"],
        "dev": [tabbed("index question sentence label"), "0\twho?\tthe fox\tentailment"],
        "test": [tabbed("index question sentence"), "4\twhat?\tthe fox"],
    },
    "SST-2": {
        "train": [tabbed("sentence label"), "hide new secretions \t0", "contains no wit \t1"],
        "dev": [tabbed("sentence label"), "it 's charming . \t1"],
        "test": [tabbed("index sentence"), "3\tuneasy mishmash"],
    },
    "CoLA": {
        "train": ["gj04\t1\t\tour friends won't buy this.", "gj04\t0\t*\tthey drank the pub."],
        "dev": ["gj04\t1\t\tthe sailors rode the breeze."],
        "test": [tabbed("index sentence"), "5\tBill whistled."],
    },
    "MRPC": {
        "train": [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t702876\t702977\tAmrozi called "the witness " , of\tReferring to him as only " the witness',
            "0\t2108705\t2108831\tYucaipa owned it\tYucaipa bought it",
        ],
        "dev": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\the said\tshe said"],
        "test": ["\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String", "6\t1089874\t1089925\tPCCW\tCurrent"],
    },
    "RTE": {
        "train": [tabbed("index sentence1 sentence2 label"), "0\tno weapons\tweapons\tnot_entailment"],
        "dev": [tabbed("index sentence1 sentence2 label"), "0\ta fox\ta fox\tentailment"],
        "test": [tabbed("index sentence1 sentence2"), "2\tone\ttwo"],
    },
    "STS-B": {
        "train": [tabbed(f"{STS} score"), STS_ROW.format(0, "A plane.", "An air plane.") + "\t4.750"],
        "dev": [tabbed(f"{STS} score"), STS_ROW.format(0, "A man.", "A hat.") + "\t0.000"],
        "test": [tabbed(STS), STS_ROW.format(8, "A girl.", "A boy.")],
    },
    "WNLI": {
        "train": [tabbed("index sentence1 sentence2 label"), "0\tI stuck a pin\tthe pin\t1"],
        "dev": [tabbed("index sentence1 sentence2 label"), "0\tthe drain\tthe hair\t0"],
        "test": [tabbed("index sentence1 sentence2"), "1\tMaude\tDora"],
    },
}


def write_glue(folder: Path, task: str, split: str) -> Path:
    """Writes one of the files."""
    path = folder / f"{task}-{split}.tsv"
    path.write_text("".join(f"{line}\n" for line in FILES[task][split]), encoding="utf-8", newline="")
    return path
