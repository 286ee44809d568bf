// The parts of transfer_dock._native.
#pragma once

#include <nanobind/nanobind.h>

namespace tdock::python {

void BindDock(nanobind::module_& module);
void BindServers(nanobind::module_& module);
void BindMindSpeed(nanobind::module_& module);
void BindBatches(nanobind::module_& module);
void BindController(nanobind::module_& module);

}  // namespace tdock::python
