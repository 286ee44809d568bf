// What a controller and its workers send each other: facts, and batches of any size, over streams of small messages.
//
//   | u64 length | u32 frames | u32 0 | u64 length of each frame | zeros | frame | frame … |
//                                                                   └ each part ends at a multiple of 64 bytes
//
// The first frame (docs/frame.md) has no columns: its meta are the facts. The others are the batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rpc/message.h"
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

// The messages of a parcel, to be sent one after another. They share the batches' memory. InvalidArgument for what
// cannot be a frame, and for a parcel beyond the limits.
absl::StatusOr<std::vector<rpc::Message>> ToMessages(const Parcel& parcel, const ParcelLimits& limits = {});

// The inverse, from messages in order, of one parcel after another. Safe for any bytes: it takes no more memory than
// twice what has arrived. Not thread-safe.
class ParcelReader {
 public:
  explicit ParcelReader(const ParcelLimits& limits = {}) : limits_(limits) {}

  // Nothing until the last message of a parcel. InvalidArgument or DataLoss for bytes that are none; no other call may
  // follow then.
  absl::StatusOr<std::optional<Parcel>> Feed(rpc::Pieces message);

 private:
  absl::StatusOr<std::optional<Parcel>> Finish();

  const ParcelLimits limits_;
  Buffer bytes_;       // those that have arrived, and room
  size_t used_ = 0;    // of them
  uint64_t want_ = 0;  // the length of the parcel; 0: not known yet
};

}  // namespace tdock::runtime
