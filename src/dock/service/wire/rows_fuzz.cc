// Whatever a server says of rows, with their bytes as views or behind the message: a client reads no byte that is not
// there, and rows that it understands say the same again.
//
// An input is a u32 with the length of a Rows message, the message, and the bytes: of the one segment, and again those
// that follow the message.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/testing/hostile_text.h"
#include "dock/service/wire/distinct_rows.h"
#include "dock/service/wire/rows_codec.h"

namespace tdock::service {
namespace {

struct Heap final : Memory {
  Buffer Allocate(size_t size_bytes) override { return Buffer::Allocate(size_bytes); }
};

// Looks at every byte of the rows, for the sanitizer.
void Read(const Rows& rows) {
  uint64_t sum = 0;
  for (size_t column = 0; column < rows.columns().size(); ++column) {
    for (size_t row = 0; row < rows.size(); ++row) {
      for (std::byte byte : rows.cell(row, column).bytes) sum += static_cast<uint8_t>(byte);
      sum += rows.key(row).size() + rows.tags(row).size();
    }
  }
  if (sum == ~uint64_t{0}) std::abort();  // no input is long enough
  CheckMessage(rows.ToBatch().status());
  const message::Rows message = Encode(rows);
  const std::string bytes = Serialize(message);
  if (ByteSize(message) != bytes.size() || Serialize(*Parse<message::Rows>(bytes)) != bytes) std::abort();
  message::Rows streamed = message;
  const absl::StatusOr<StreamedCells> cells = EncodeStreamed(rows, streamed, 1 << 20);
  if (!cells.ok()) return;
  uint64_t bytes_behind = 0;
  for (const auto& piece : cells->pieces) bytes_behind += piece.size();
  if (bytes_behind != streamed.streamed_bytes) std::abort();
}

void Try(const message::Rows& message, const std::shared_ptr<char>& bytes, size_t size, const Buffer& streamed) {
  const auto look = [&](uint64_t segment, uint64_t offset, uint64_t count) -> absl::StatusOr<const std::byte*> {
    if (segment != 1) return absl::NotFoundError("no such segment");
    if (offset > size || count > size - offset) return absl::InvalidArgumentError("beyond the segment");
    return reinterpret_cast<const std::byte*>(bytes.get()) + offset;
  };
  absl::StatusOr<CellBytes> cells = CellsIn(message, look, streamed);
  if (!cells.ok()) return;
  cells->pins.push_back(bytes);
  const absl::StatusOr<Rows> rows = Decode(message, *std::move(cells));
  if (!rows.ok()) return;
  Read(*rows);
  Heap heap;
  Read(Gathered(*rows, heap));
  const std::vector<uint32_t> twice(rows->empty() ? 0 : 2, 0);
  Read(RowsAt(*rows, twice));
}

}  // namespace
}  // namespace tdock::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t length = 0;
  if (size < sizeof(length)) return 0;
  std::memcpy(&length, data, sizeof(length));
  data += sizeof(length);
  size -= sizeof(length);
  if (length > size) return 0;
  const auto message = tdock::service::Parse<tdock::service::message::Rows>(
      absl::string_view(reinterpret_cast<const char*>(data), length));
  if (!message.ok()) return 0;
  // Ends where its memory ends.
  const size_t left = size - length;
  const std::shared_ptr<char> bytes(static_cast<char*>(std::malloc(left)), std::free);
  if (left > 0) std::memcpy(bytes.get(), data + length, left);
  tdock::service::Try(*message, bytes, left, {});
  tdock::service::Try(*message, bytes, left, tdock::Buffer::Wrap(bytes.get(), left, bytes));
  return 0;
}
