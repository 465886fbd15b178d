# What SMOKE=1 changes of the job $1: the flags in TOY, and the number of processes. Everything is written below SMOKE_DIR
# (smoke_run/). What another script makes first is made by that script, unless it is there. `smoke` in lib.sh sources this.
export SMOKE_DIR=${SMOKE_DIR:-$ROOT/smoke_run}
echo "SMOKE=1: $1 at toy size, on CPU, in $SMOKE_DIR"
data=$SMOKE_DIR/data
gpt_tokens=(--tokenizer-type GPT2BPETokenizer --vocab-file "$data/gpt2/vocab.json" --merge-file "$data/gpt2/merges.txt")
bert_tokens=(--tokenizer-type BertWordPieceLowerCase --vocab-file "$data/bert/vocab.txt")

# needs PATH [VARIABLE=VALUE…] SCRIPT: runs another script when the path is not there.
needs() { [ -e "$SMOKE_DIR/$1" ] || env "${@:2:$#-2}" bash "$ROOT/scripts/${*: -1}"; }

"$PYTHON" "$ROOT/scripts/smoke/data.py" "$data"
rm -rf "${SMOKE_DIR:?}/$1" # of an earlier start
case $1 in
    preprocess_gpt) TOY=(--input "$data/text.jsonl" --output-prefix "$data/gpt" "${gpt_tokens[@]}") ;;
    preprocess_bert) TOY=(--input "$data/text.jsonl" --output-prefix "$data/bert" "${bert_tokens[@]}") ;;
    pretrain_gpt*)
        needs data/gpt_text_document.idx MODEL=gpt preprocess_data.sh
        TOY=(--config "$ROOT/scripts/smoke/gpt.json" --data-path "$data/gpt_text_document" "${gpt_tokens[@]}") ;;
    pretrain_bert*)
        needs data/bert_text_sentence.idx MODEL=bert preprocess_data.sh
        TOY=(--config "$ROOT/scripts/smoke/bert.json" --data-path "$data/bert_text_sentence" "${bert_tokens[@]}") ;;
    merge_mp_*)
        needs "${1/merge_mp/pretrain}_distributed_with_mp/latest" "${1/merge_mp/pretrain}_distributed_with_mp.sh"
        TOY=(--input "$SMOKE_DIR/${1/merge_mp/pretrain}_distributed_with_mp" --output "$SMOKE_DIR/$1/model.safetensors") ;;
esac
case $1 in pretrain_*) TOY+=(--save "$SMOKE_DIR/$1") ;; esac
case $1 in
    *_distributed) GPUS_PER_NODE=${GPUS_PER_NODE:-2} ;;
    pretrain_gpt3_175B)
        TP=${TP:-2} PP=${PP:-2} GPUS_PER_NODE=${GPUS_PER_NODE:-$((TP * PP))}
        TOY+=(--tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP") ;;
esac
