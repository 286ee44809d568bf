#include "python/incoming.h"

#include <utility>

#include "core/tensor/bulk_copy.h"
#include "python/process.h"

namespace tdock::python {
namespace {

bool IsAligned(const std::byte* data, size_t alignment) { return reinterpret_cast<uintptr_t>(data) % alignment == 0; }

Buffer Values(const Incoming& incoming, dock::WarmMemory& memory) {
  if (incoming.parts.size() == 1 && IsAligned(incoming.parts[0].data(), SizeOf(incoming.type.dtype))) {
    return Buffer::Wrap(incoming.parts[0].data(), incoming.parts[0].size(), incoming.owner);
  }
  size_t total = 0;
  for (const auto& part : incoming.parts) total += part.size();
  Buffer values = memory.Allocate(total);
  const BulkCopy copy(total);
  std::byte* to = values.mutable_data();
  for (const auto& part : incoming.parts) {
    if (part.empty()) continue;
    copy(to, part.data(), part.size());
    to += part.size();
  }
  return values;
}

}  // namespace

dock::WarmMemory& MemoryForCopies() {
  struct Memory {
    std::shared_ptr<dock::WarmMemory> warm = std::make_shared<dock::WarmMemory>();
  };
  static constinit OneEachProcess<Memory> memory;
  return *memory.Get().warm;
}

absl::StatusOr<Column> MakeColumn(Incoming incoming) {
  Buffer values = Values(incoming, MemoryForCopies());
  const ColumnType& type = incoming.type;
  if (type.kind == ColumnKind::kDense) {
    return Column::MakeDense(type.dtype, type.row_shape, incoming.rows, std::move(values));
  }
  Buffer offsets = Buffer::Allocate((incoming.lengths.size() + 1) * sizeof(int64_t));
  auto* offset = reinterpret_cast<int64_t*>(offsets.mutable_data());
  *offset = 0;
  for (const int64_t length : incoming.lengths) {
    offset[1] = offset[0] + length;
    ++offset;
  }
  if (type.kind == ColumnKind::kBytes) return Column::MakeBytes(std::move(values), std::move(offsets), type.dtype);
  return Column::MakeRagged(type.dtype, type.row_shape, std::move(values), std::move(offsets));
}

}  // namespace tdock::python
