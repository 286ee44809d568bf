"""Time limits of tests that hold on a machine under any load.

A program that works until it is done, such as a run or a benchmark, has none: scripts/run_tests.py limits the test.
"""

import time

LONG = 300  # seconds: longest wait for something that must happen, which only a test that fails takes
NEVER = 86_400  # seconds: timeout of the product that must not be what ends a wait


def until(condition, what, every=0.005):
    """Waits until the condition is true, and returns its value. Fails with `what`, or what that returns."""
    end = time.monotonic() + LONG
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {LONG} s for {what() if callable(what) else what}")
        time.sleep(every)
    return value
