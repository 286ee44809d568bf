// Helpers for the tests of frames.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tdock/frame.h"

namespace tdock {

inline std::string Join(const EncodedFrame& frame) {
  std::string bytes;
  for (absl::string_view piece : frame.Pieces()) bytes.append(piece.data(), piece.size());
  return bytes;
}

inline std::string Encode(const MetaBatch& batch, FrameChecksums checksums = FrameChecksums::kBlocks) {
  return Join(*EncodeFrame(batch, {}, checksums));
}

// Decodes a copy that ends where its memory ends, so that a sanitizer sees every read beyond it.
inline absl::StatusOr<MetaBatch> Decode(absl::string_view bytes, const FrameLimits& limits = {}) {
  const std::shared_ptr<char> copy(static_cast<char*>(::malloc(bytes.size())), ::free);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  return DecodeFrame(Buffer::Wrap(copy.get(), bytes.size(), copy), limits);
}

inline MetaBatch Rewards() {
  Batch batch;
  EXPECT_TRUE(batch.Add("reward", Column::FromValues<float>({0.5, 1})).ok());
  EXPECT_TRUE(batch.Add("text", Column::FromStrings(std::vector<std::string>{"ab", "c"})).ok());
  return MetaBatch(std::move(batch), {{"step", 7}});
}

}  // namespace tdock
