// Whatever the bytes are, decoding them reads nothing outside of them; and a batch that comes out of them is a batch,
// and makes them again. Reading them in pieces comes to the same.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "core/base/testing/hostile_text.h"
#include "core/tensor/frame_reader.h"
#include "core/tensor/testing/frame_signing.h"
#include "tdock/frame.h"

namespace tdock {
namespace {

std::string Join(const EncodedFrame& frame) {
  std::string bytes;
  for (absl::string_view piece : frame.Pieces()) bytes.append(piece.data(), piece.size());
  return bytes;
}

// A reader of pieces sees something else first if the rest of a frame is missing or too much. Of two damages it may see
// the other one: bytes between columns as they arrive, checksums of values when all are there.
void TryInPieces(const std::string& bytes, const FrameLimits& limits, const absl::StatusOr<MetaBatch>& expected) {
  Rng cuts(bytes.size());
  FrameReader reader(limits, Buffer::Allocate);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - at, 1 + cuts.Below(100));
    const std::vector<char> piece(bytes.begin() + at, bytes.begin() + at + size);
    if (!reader.Feed(std::as_bytes(std::span(piece))).ok()) break;
    at += size;
  }
  const absl::StatusOr<MetaBatch> batch = reader.Finish();
  tdock::CheckMessage(expected.status());
  if (batch.ok() != expected.ok()) std::abort();
  if (NumberAt<uint64_t>(bytes, 32) == bytes.size() && batch.status().code() != expected.status().code()) std::abort();
  // Compared as bytes: a NaN is not equal to itself.
  if (batch.ok() && Join(*EncodeFrame(*batch)) != Join(*EncodeFrame(*expected))) std::abort();
}

void Try(const std::string& bytes) {
  // As much as a fuzzer may have.
  const FrameLimits limits = {.max_frame_bytes = size_t{64} << 20, .allow_unchecked = true};
  // Ends where its memory ends.
  const std::shared_ptr<char> copy(static_cast<char*>(std::malloc(bytes.size())), std::free);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  const absl::StatusOr<MetaBatch> batch = DecodeFrame(Buffer::Wrap(copy.get(), bytes.size(), copy), limits);
  TryInPieces(bytes, limits, batch);
  if (!batch.ok()) return;
  const bool checked = NumberAt<uint32_t>(bytes, 8) == 1;
  if (Join(*EncodeFrame(*batch, limits, checked ? FrameChecksums::kBlocks : FrameChecksums::kNone)) != bytes) {
    std::abort();
  }
}

}  // namespace
}  // namespace tdock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  tdock::Try(bytes);
  // No fuzzer finds a checksum by itself.
  tdock::SignHeader(bytes);
  tdock::Try(bytes);
  tdock::SignFrame(bytes);
  tdock::Try(bytes);
  return 0;
}
