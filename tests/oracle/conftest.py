"""torch on one thread: for tiny models a second one costs more than it saves, ten times as much where cores are busy."""

import torch

torch.set_num_threads(1)
