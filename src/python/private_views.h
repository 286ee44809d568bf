// Arrays and tensors that their owner may write to, over the dock's memory: what is written is copied first.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>
#include <span>

#include "python/rows.h"

namespace tdock::python {

struct PrivateView {
  std::byte* data = nullptr;
  // Keeps the memory, and the rows, which keep the dock from changing it.
  nanobind::object owner = {};
};

// A view of these adjacent cells of the rows; nothing if they are too few to be worth it, if the rows do not lie in
// memory that another process shares with this one, or while this process forks. Needs the GIL.
std::optional<PrivateView> MakePrivateView(const SharedRows& rows, std::span<const std::byte> cells);

// A forked process does not keep the dock from changing the rows, so it must not see them. Before a fork: all views get
// copies of what they have not written yet, and until after it no views are made. They need the GIL.
void BeginForkOfPrivateViews();
void EndForkOfPrivateViews();
void EndForkOfPrivateViewsInChild();

}  // namespace tdock::python
