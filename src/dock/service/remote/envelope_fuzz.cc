// Whatever the messages of a call are, reading them reads nothing outside of them; and how they are cut does not
// matter.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "dock/service/remote/envelope.h"

namespace tdock::service {
namespace {

struct Outcome {
  absl::Status status;
  std::string control;
  bool done = false;
  int64_t rows = 0;
};

// Feeds the bytes in pieces of at most so many.
Outcome ReadInPieces(const std::string& bytes, size_t most, bool frame) {
  Outcome outcome;
  EnvelopeReader reader([&](const std::string& control) -> absl::StatusOr<std::unique_ptr<FrameReader>> {
    outcome.control = control;
    if (!frame) return nullptr;
    const FrameLimits limits{.max_frame_bytes = size_t{64} << 20, .allow_unchecked = true};
    return std::make_unique<FrameReader>(limits, Buffer::Allocate);
  });
  Rng cuts(bytes.size());
  for (size_t at = 0; at < bytes.size() && outcome.status.ok();) {
    const size_t size = std::min<size_t>(bytes.size() - at, 1 + cuts.Below(most));
    // Ends where its memory ends.
    const std::vector<char> copy(bytes.begin() + static_cast<ptrdiff_t>(at),
                                 bytes.begin() + static_cast<ptrdiff_t>(at + size));
    const std::span<const std::byte> piece = std::as_bytes(std::span(copy));
    outcome.status = reader.Feed(std::span(&piece, 1));
    at += size;
  }
  outcome.done = outcome.status.ok() && reader.done();
  if (!outcome.done) return outcome;
  const absl::StatusOr<Batch> batch = reader.Finish();
  outcome.status = batch.status();
  if (batch.ok()) outcome.rows = batch->rows();
  return outcome;
}

void Try(const std::string& bytes, bool frame) {
  const Outcome whole = ReadInPieces(bytes, SIZE_MAX / 2, frame), pieces = ReadInPieces(bytes, 50, frame);
  if (whole.status.code() != pieces.status.code() || whole.done != pieces.done || whole.rows != pieces.rows) {
    std::abort();
  }
  if (whole.done && whole.control != pieces.control) std::abort();
}

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  tdock::service::Try(bytes, /*frame=*/false);
  tdock::service::Try(bytes, /*frame=*/true);
  return 0;
}
