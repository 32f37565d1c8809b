"""One thread for every test that does not ask for more: on a busy machine two threads mostly wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
