// Puts from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <stop_token>

#include "python/dock_handle.h"
#include "tdock/requests.h"

namespace tdock::python {

// Puts `data`, a dict of columns (see columns_in.h) or None, as the batch of a PutRequest or FillRequest, and returns
// the row ids. Needs the GIL; raises Python exceptions.
template <class Request>
nanobind::object Put(DockHandle& handle, Request request, nanobind::handle data, const std::stop_token& cancel);

}  // namespace tdock::python
