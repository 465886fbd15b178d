#!/usr/bin/env bash
# Turns texts into the token files that the pretraining scripts read.
#
#   bash scripts/preprocess_data.sh --input corpus.jsonl --output-prefix DATA/corpus --vocab-file vocab.json \
#       --merge-file merges.txt                                              # writes DATA/corpus_text_document.bin, .idx
#   MODEL=bert bash scripts/preprocess_data.sh --input corpus.jsonl --output-prefix DATA/corpus \
#       --vocab-file bert-large-uncased-vocab.txt                            # writes DATA/corpus_text_sentence.bin, .idx
#
# Inputs: JSON lines with the text under "text", or other files (docs/data.md), and the tokenizer's files.
# Arguments: those of `megatron-ds preprocess`.
# Environment: MODEL, gpt or bert, gives the options that such a model needs.
# SMOKE=1: 200 short documents.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
prepare_environment
MODEL=${MODEL:-gpt}
case $MODEL in
    gpt) options=(--append-eod --tokenizer-type GPT2BPETokenizer) ;;
    bert) options=(--split-sentences --tokenizer-type BertWordPieceLowerCase) ;;
    *) echo "MODEL=$MODEL: give gpt or bert" >&2 && exit 2 ;;
esac
smoke "preprocess_$MODEL"

run "$PYTHON" -m megatron_ds preprocess "${options[@]}" "${TOY[@]}" "$@"
