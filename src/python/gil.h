// Letting go of the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace tdock::python {

// Sleeps until the process ends.
[[noreturn]] inline void SleepForever() {
  for (;;) pause();
}

// Without the GIL for the life of this. While the interpreter ends, Python up to 3.13 ends threads that ask for the GIL
// by unwinding their stack, and C++ ends a process whose stack is unwound through what must not throw, as destructors
// and nanobind's calls are. So such a thread stays where it is, as from Python 3.14 on.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // To leave this block would be to go on with the unwinding.
      SleepForever();
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace tdock::python
