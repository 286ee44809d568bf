// A load test of a server: puts rows as fast as it accepts them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tdock/dock.h"

namespace tdock::console {

struct LoadOptions {
  // Created if it does not exist; the rows stay in it.
  std::string partition = "load";
  int64_t rows = 16;  // per put
  int64_t columns = 9;
  int64_t cell_bytes = 32;  // a multiple of 4
  absl::Duration duration = absl::Seconds(2);
};

// Puts from one thread, one put after another, and then writes "61234 rows/s". InvalidArgument for sizes that are not
// positive or beyond a gigabyte for one put.
absl::Status Load(Dock& dock, const LoadOptions& options, std::ostream& out);

}  // namespace tdock::console
