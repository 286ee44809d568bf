// Any bytes as the data of a connection between a controller and a worker.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/testing/hostile_text.h"
#include "runtime/control/messages.h"
#include "runtime/control/parcel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tdock::runtime::ParcelReader reader({.max_bytes = 1 << 20, .max_frames = 16});
  // In two parts, cut where the first byte says.
  const size_t cut = size == 0 ? 0 : data[0] % size;
  for (auto part : {std::span(data, cut), std::span(data + cut, size - cut)}) {
    while (!part.empty()) {
      const std::span<std::byte> room = reader.Room(part.size());
      std::copy_n(std::as_bytes(part).begin(), room.size(), room.begin());
      part = part.subspan(room.size());
      const auto read = reader.Fill(room.size());
      tdock::CheckMessage(read.status());
      if (!read.ok()) return 0;
      if (!read->has_value()) continue;
      tdock::runtime::StatusIn(**read).IgnoreError();
      for (const char* name : {"value", "arguments"}) {
        tdock::CheckMessage(tdock::runtime::ValueIn(**read, name).status());
      }
    }
  }
  return 0;
}
