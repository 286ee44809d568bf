#include <nanobind/nanobind.h>

#include "python/bindings.h"
#include "python/forks.h"
#include "python/rows.h"

NB_MODULE(_native, module) {
  // A thread that the end of the interpreter finds in a call keeps what it holds, and no warning would help.
  nanobind::set_leak_warnings(false);
  tdock::python::BindRows(module);
  tdock::python::BindDock(module);
  tdock::python::BindServers(module);
  tdock::python::BindForks(module);
  tdock::python::BindMindSpeed(module);
  tdock::python::BindBatches(module);
  tdock::python::BindController(module);
}
