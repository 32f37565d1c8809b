"""One thread for every test that does not ask for more: on a busy machine two threads mostly wait for each other.

Where a test does ask for more, a waiting thread sleeps, since spinning ones starve each other on a shared core.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
