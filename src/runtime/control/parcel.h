// What a controller and its workers send each other: facts, and batches of any size. A parcel is a message of core/net
// without a body, kParcel, and data, all with the tag 0:
//
//   | u64 length | u32 frames | u32 0 | u64 length of each frame | zeros | frame | frame … |
//                                                                   └ each part ends at a multiple of 64 bytes
//
// The first frame (docs/frame.md) has no columns: its meta are the facts. The others are the batches. Blocks of frames
// have no checksums, since data messages have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/buffer.h"
#include "tdock/meta.h"
#include "tdock/meta_batch.h"

namespace tdock::runtime {

struct Parcel {
  Meta facts = {};
  std::vector<MetaBatch> batches = {};

  // A fact; its zero value if there is none of that type.
  int64_t Integer(const std::string& name) const;
  std::string Text(const std::string& name) const;
};

struct ParcelLimits {
  uint64_t max_bytes = uint64_t{4} << 30;
  uint32_t max_frames = 4096;
};

// The bytes of a parcel, in order. They share the batches' memory.
struct PackedParcel {
  std::vector<std::span<const std::byte>> pieces = {};
  std::shared_ptr<const void> owner = {};  // keeps the pieces alive
};
// InvalidArgument for what cannot be a frame, and for a parcel beyond the limits.
absl::StatusOr<PackedParcel> Pack(const Parcel& parcel, const ParcelLimits& limits = {});

// The inverse, from the data of one parcel after another. Safe for any bytes: it takes no more memory than 1 MiB, or
// twice what has arrived. Not thread-safe.
class ParcelReader {
 public:
  explicit ParcelReader(const ParcelLimits& limits = {}) : limits_(limits) {}

  // Memory for the next bytes, at least one and at most `most`, but never beyond the end of the parcel.
  std::span<std::byte> Room(size_t most);
  // So many bytes of it were filled. Nothing until the last byte of a parcel. InvalidArgument or DataLoss for bytes
  // that are none; no other call may follow then.
  absl::StatusOr<std::optional<Parcel>> Fill(size_t bytes);

 private:
  absl::StatusOr<std::optional<Parcel>> Finish();

  const ParcelLimits limits_;
  Buffer bytes_;       // those that have arrived, and room
  size_t used_ = 0;    // of them
  uint64_t want_ = 0;  // the length of the parcel; 0: not known yet
};

}  // namespace tdock::runtime
