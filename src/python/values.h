// What calls of workers pass and return, as Python objects.
//
//   None, bool, int, float, str       themselves
//   list, tuple                       a list
//   dict with str keys                an object
//   Batch, RowsRef                    a batch, rows of a dock
//   a scalar of NumPy or torch        the number
//
// Nothing else is passed: neither functions nor objects of other classes, which a process elsewhere may not have.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "python/process.h"
#include "runtime/dispatch/value.h"
#include "tdock/meta.h"
#include "tdock/meta_batch.h"

namespace tdock::python {

// transfer_dock._native.Batch. Plain memory, which may be read in a forked process.
struct PyBatch {
  explicit PyBatch(MetaBatch made) : batch(std::make_shared<const MetaBatch>(std::move(made))) {}
  const MetaBatch& operator*() const { return *batch; }
  const MetaBatch* operator->() const { return &*batch; }

  OfThisProcess<const MetaBatch> batch;
};

// transfer_dock._native.RowsRef.
struct PyRowsRef {
  runtime::RowsRef rows;
};

// All need the GIL. InvalidArgument, beginning with `what`, says which part of the object cannot be passed.
absl::StatusOr<runtime::Value> ValueOf(nanobind::handle object, const std::string& what, int depth = 1);
nanobind::object ToPython(const runtime::Value& value);

// A dict of str to what JSON has; None: empty.
absl::StatusOr<Meta> MetaOf(nanobind::handle dict, const std::string& what);
nanobind::object ToPython(const Meta& meta);

}  // namespace tdock::python
