// Releasing the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace tdock::python {

// Sleeps until the process ends.
[[noreturn]] inline void SleepForever() {
  for (;;) pause();
}

// Releases the GIL for its lifetime. During interpreter shutdown, Python up to 3.13 ends threads that request the GIL
// by unwinding their stack, and C++ terminates a process whose stack is unwound through noexcept code, such as
// destructors and nanobind's calls. So such a thread blocks forever instead, as from Python 3.14 on.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // Leaving this block would continue the unwinding.
      SleepForever();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace tdock::python
