"""app.py as ZeroGPU runs it, with a processor in the place of the GPU.

The real `spaces` lends it: a race runs in a forked worker, what goes in and comes out is pickled. Only what it does to
torch needs a CUDA build; where it finds no torch, as it is made to believe here, it leaves that out by itself.
"""

import runpy
import sys

sys.modules["torch"] = None  # type: ignore[assignment]
import spaces.zero.torch  # noqa: E402, F401

del sys.modules["torch"]
runpy.run_path("app.py", run_name="__main__")
