# What SMOKE=1 changes of the job $1: the flags in TOY, and the number of processes. Everything is written below
# SMOKE_DIR (smoke_run/). What the job begins with is made by its own script, unless it is there. `smoke` in lib.sh
# sources this.
export SMOKE_DIR=${SMOKE_DIR:-$ROOT/smoke_run}
echo "SMOKE=1: $1 at toy size, on CPU, in $SMOKE_DIR"
data=$SMOKE_DIR/data toys=$ROOT/scripts/smoke
gpt_tokens=(--tokenizer-type GPT2BPETokenizer --vocab-file "$data/gpt2/vocab.json" --merge-file "$data/gpt2/merges.txt")
bert_tokens=(--tokenizer-type BertWordPieceLowerCase --vocab-file "$data/bert/vocab.txt")

# needs PATH [VARIABLE=VALUE…] SCRIPT: runs another script when the path is not there.
needs() { [ -e "$SMOKE_DIR/$1" ] || env "${@:2:$#-2}" bash "$ROOT/scripts/${*: -1}"; }
# new PATH: a path that nothing of an earlier start is at.
new() { rm -rf "${SMOKE_DIR:?}/$1" && echo "$SMOKE_DIR/$1"; }

"$PYTHON" "$toys/data.py" "$data"
case $1 in
    preprocess_gpt) TOY=(--input "$data/text.jsonl" --output-prefix "$data/gpt" "${gpt_tokens[@]}") ;;
    preprocess_bert) TOY=(--input "$data/text.jsonl" --output-prefix "$data/bert" "${bert_tokens[@]}") ;;
    pretrain_gpt*)
        needs data/gpt_text_document.idx MODEL=gpt preprocess_data.sh
        TOY=(--config "$toys/gpt.json" --data-path "$data/gpt_text_document" "${gpt_tokens[@]}" --save "$(new "$1")")
        ;;
    pretrain_bert*)
        needs data/bert_text_sentence.idx MODEL=bert preprocess_data.sh
        TOY=(--config "$toys/bert.json" --data-path "$data/bert_text_sentence" "${bert_tokens[@]}" --save "$(new "$1")")
        ;;
    merge_mp_*)
        run=${1/merge_mp/pretrain}_distributed_with_mp
        needs "$run/latest" "$run.sh"
        TOY=(--input "$SMOKE_DIR/$run" --output "$(new "$1.safetensors")") ;;
    finetune_*_distributed)
        needs pretrain_bert/latest pretrain_bert.sh
        TOY=(--config "$toys/finetune.json" --pretrained-checkpoint "$SMOKE_DIR/pretrain_bert" --save "$(new "$1")") ;;
    finetune_gpt_sft)
        needs pretrain_gpt/latest pretrain_gpt.sh
        TOY=(--config "$toys/finetune.json" --pretrained-checkpoint "$SMOKE_DIR/pretrain_gpt" --save "$(new "$1")"
            --train-data "$data/sft/train.jsonl" --valid-data "$data/sft/valid.jsonl") ;;
    evaluate_zeroshot_gpt_*)
        needs pretrain_gpt/latest pretrain_gpt.sh
        TOY=(--load "$SMOKE_DIR/pretrain_gpt" --valid-data "$data/$TASK" --output "$(new "$1.json")") ;;
esac
case $1 in
    finetune_mnli*)
        TOY+=(--train-data "$data/MNLI/train.tsv" --valid-data "$data"/MNLI/dev*.tsv --test-data "$data"/MNLI/test*.tsv) ;;
    finetune_race*)
        TOY+=(--train-data "$data/RACE/train" --valid-data "$data/RACE/dev" --test-data "$data/RACE/test") ;;
esac
case $1 in
    *_distributed) GPUS_PER_NODE=${GPUS_PER_NODE:-2} ;;
    pretrain_gpt3_175B)
        TP=${TP:-2} PP=${PP:-2} GPUS_PER_NODE=${GPUS_PER_NODE:-$((TP * PP))}
        TOY+=(--tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP") ;;
esac
