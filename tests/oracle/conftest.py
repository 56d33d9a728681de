"""Runs torch on one thread: for tiny models, a second thread is slower, and ten times slower if the cores are busy."""

import torch

torch.set_num_threads(1)
