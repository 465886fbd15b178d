"""What `startup.py` compares with: DeepSpeed and nothing else. Start it with DeepSpeed's launcher."""

import deepspeed
import deepspeed.ops
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at each start on a CPU otherwise
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={"train_micro_batch_size_per_gpu": 1})
engine.backward(engine(torch.ones(1, 32)).square().mean())
engine.step()
print("step 1", flush=True)
