"""Flags of others about models and methods that are not here."""

from __future__ import annotations

from megatron_ds.config.migration.entries import Names, Refused, Topic

EXPERTS = Topic(
    "Mixtures of experts",
    refused=(
        Refused(
            "mixtures of experts are not supported: leave it out for a dense model",
            Names(
                microsoft="--num-experts --num-experts-switch --mlp-type --topk --expert-interval --moe-loss-coeff "
                "--moe-expert-parallel-size --moe-train-capacity-factor --moe-eval-capacity-factor --moe-min-capacity "
                "--disable-moe-token-dropping --disable-moe-top2-2nd-expert-sampling --create-moe-param-group "
                "--enable-expert-tensor-parallelism --use-tutel",
                others="--expert-model-parallel-size --expert-tensor-parallel-size --moe-router-topk "
                "--moe-grouped-gemm --moe-token-dispatcher-type --moe-aux-loss-coeff --moe-router-load-balancing-type",
            ),
        ),
    ),
)

OTHER_MODELS = Topic(
    "Retrievers, images, distillation",
    refused=(
        Refused(
            "retrievers (ICT, REALM, ORQA) are not supported",
            Names(
                both="--ict-head-size --biencoder-projection-dim --biencoder-shared-query-context-model --ict-load "
                "--bert-load --titles-data-path --query-in-block-prob --use-one-sent-docs --evidence-data-path "
                "--retriever-report-topk-accuracies --retriever-score-scaling --retriever-seq-length "
                "--block-data-path --embedding-path --indexer-batch-size --indexer-log-interval --qa-data-dev "
                "--qa-data-test --faiss-use-gpu --faiss-match --faiss-topk-retrievals --train-with-neg "
                "--train-hard-neg --val-av-rank-hard-neg --val-av-rank-other-neg",
            ),
        ),
        Refused(
            "models that read retrieved texts (Retro) are not supported",
            Names(
                microsoft="--retro-workdir --retro-add-retriever --retro-cyclic-train-iters --retro-encoder-layers "
                "--retro-encoder-hidden-dropout --retro-encoder-attention-dropout --retro-num-neighbors "
                "--retro-num-retrieved-chunks --retro-return-doc-ids --output-bert-embeddings --bert-embedder-type"
            ),
        ),
        Refused(
            "models of images are not supported",
            Names(
                both="--img-dim --num-channels --patch-dim",
                microsoft="--img-h --img-w --classes-fraction --data-per-class-fraction --no-data-sharding "
                "--head-lr-mult --vision-pretraining --vision-pretraining-type --vision-backbone-type "
                "--swin-backbone-type --mask-type --mask-factor --iter-per-epoch --dino-local-img-size "
                "--dino-local-crops-number --dino-head-hidden-size --dino-bottleneck-size --dino-freeze-last-layer "
                "--dino-norm-last-layer --dino-warmup-teacher-temp --dino-teacher-temp "
                "--dino-warmup-teacher-temp-epochs",
            ),
        ),
        Refused(
            "distillation is not supported",
            Names(
                microsoft="--num-layers-teacher --num-experts-teacher --hidden-size-teacher "
                "--num-attention-heads-teacher --mos --kd --kd-alpha-ce --kd-beta-ce --kd-temp --load-teacher"
            ),
        ),
        Refused(
            "leave it out: texts are written by `megatron-ds generate`, and scored by `megatron-ds evaluate`",
            Names(
                both="--inference",
                microsoft="--ds-inference --inference-batch-times-seqlen-threshold --max-tokens-to-oom",
            ),
        ),
    ),
)
