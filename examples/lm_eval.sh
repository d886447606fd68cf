#!/bin/sh
# lm-eval against the orchestrator's chat endpoint: examples/lm_eval.sh http://localhost:8080 MODEL TASK [options of lm_eval]
# `scripts/lm_eval_env.sh` makes an environment with lm_eval and prints where; or: pip install 'lm_eval[api]'
set -eu
url=$1 model=$2 task=$3
shift 3
exec "${LM_EVAL:-lm_eval}" run --model local-chat-completions \
  --model_args "model=$model,base_url=$url/v1/chat/completions,num_concurrent=16,max_retries=3,tokenizer_backend=None,tokenized_requests=False" \
  --tasks "$task" --apply_chat_template "$@"
