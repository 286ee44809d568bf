// Whatever the bytes are, decoding them reads nothing outside of them; and a batch that comes out of them is a batch,
// and makes them again.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "tdock/frame.h"
#include "tensor/frame_signing.h"

namespace tdock {
namespace {

void Try(const std::string& bytes) {
  // Ends where its memory ends.
  const std::shared_ptr<char> copy(static_cast<char*>(std::malloc(bytes.size())), std::free);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  const absl::StatusOr<MetaBatch> batch = DecodeFrame(Buffer::Wrap(copy.get(), bytes.size(), copy));
  if (!batch.ok()) return;
  const absl::StatusOr<EncodedFrame> again = EncodeFrame(*batch);
  std::string encoded;
  for (absl::string_view piece : again->Pieces()) encoded.append(piece.data(), piece.size());
  if (encoded != bytes) std::abort();
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
