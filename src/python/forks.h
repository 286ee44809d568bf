// Connections and views of a process that forks.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace tdock::python {

// Records the address of a server or of a connection to one, whose sockets children of this process must close. Needs
// the GIL.
void RememberAddress(const std::string& address);

// The hooks of os.register_at_fork.
void BindForks(nanobind::module_& module);

}  // namespace tdock::python
