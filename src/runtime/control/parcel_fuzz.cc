// Any bytes as the messages of a connection between a controller and a worker.
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/testing/hostile_text.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tdock::runtime::ParcelReader reader({.max_bytes = 1 << 20, .max_frames = 16});
  // In two messages, cut where the first byte says.
  const size_t cut = size == 0 ? 0 : data[0] % size;
  for (const auto part : {std::span(data, cut), std::span(data + cut, size - cut)}) {
    const std::span<const std::byte> piece = std::as_bytes(part);
    const auto read = reader.Feed({&piece, 1});
    tdock::CheckMessage(read.status());
    if (!read.ok()) return 0;
    if (!read->has_value()) continue;
    tdock::runtime::StatusIn(**read).IgnoreError();
    for (const char* name : {"value", "arguments"}) tdock::CheckMessage(tdock::runtime::ValueIn(**read, name).status());
  }
  return 0;
}
