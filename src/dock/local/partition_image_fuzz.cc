// Whatever the bytes are, importing them reads nothing outside of them, and imports all or nothing; a partition that
// comes out of them works as any other, and its image is always the same.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "core/base/testing/fake_clock.h"
#include "core/base/testing/hostile_text.h"
#include "core/tensor/testing/frame_signing.h"
#include "dock/local/partition_image.h"
#include "tdock/local_dock.h"

namespace tdock::dock {
namespace {

// Looks at every byte of the rows, for the sanitizer.
void ReadRows(const Rows& rows) {
  uint64_t sum = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    sum += rows.key(row).size() + rows.tags(row).size();
    for (size_t column = 0; column < rows.columns().size(); ++column) {
      for (std::byte byte : rows.cell(row, column).bytes) sum += static_cast<uint8_t>(byte);
      rows.Pieces(row, rows.columns()[column].name).IgnoreError();
    }
  }
  if (sum == ~uint64_t{0}) std::abort();  // no input is long enough
}

// Has each consumer take, complete and give back rows, and then removes them all.
void UseUp(Dock& dock, FakeClock& clock, const std::string& partition) {
  const PartitionStatus status = *dock.GetStatus(partition);
  for (const NamedConsumerStatus& consumer : status.consumers) {
    dock.Explain(partition, consumer.name).IgnoreError();
    for (int64_t step = 0; step < 4; ++step) {
      const auto taken = dock.Take({.partition = partition, .consumer = consumer.name, .min = 1, .max = 2});
      if (!taken.ok()) break;
      ReadRows(taken->rows);
      const LeaseRequest all{.partition = partition, .lease = taken->lease};
      if (step % 2 == 0) {
        dock.Complete({.partition = partition, .lease = taken->lease, .step = step}).IgnoreError();
        dock.Complete(all).IgnoreError();
      }
      if (step == 1) dock.Release(all).IgnoreError();
    }
    dock.Rollback({.partition = partition, .consumer = consumer.name, .step = kNoStep, .weights_version = 0})
        .IgnoreError();
    dock.Requeue({.partition = partition, .consumer = consumer.name}).IgnoreError();
  }
  clock.Advance(absl::Hours(1));
  dock.PublishWeights(partition, INT64_MAX).IgnoreError();
  dock.Put({.partition = partition, .new_rows = 3, .groups = {1, 2, 1}}).IgnoreError();
  dock.Seal(partition).IgnoreError();
  const auto listed = dock.List({.partition = partition});
  for (size_t i = 0; i < listed->rows.size(); ++i) {
    if (!dock.GetRowStatus(partition, listed->rows[i].row).ok()) std::abort();
    if (i % 2 == 0 && !dock.Drop({.partition = partition, .rows = {listed->rows[i].row}}).ok()) std::abort();
  }
  if (!status.consumers.empty() && !dock.DropConsumer(partition, status.consumers[0].name).ok()) std::abort();
  if (!dock.Clear({.partition = partition, .everything = true}).ok()) std::abort();
  if (dock.GetStatus(partition)->rows != 0) std::abort();
}

void Try(const std::string& bytes) {
  // Ends where its memory ends.
  const std::unique_ptr<char[]> copy(new char[bytes.size()]);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  FakeClock clock;
  const std::unique_ptr<Dock> dock = MakeLocalDock({.clock = &clock}), next = MakeLocalDock({.clock = &clock});
  const absl::Status status = dock->ImportPartition(absl::string_view(copy.get(), bytes.size()));
  const std::vector<std::string> names = *dock->ListPartitions();
  if (names.size() != (status.ok() ? 1 : 0)) std::abort();
  CheckMessage(status);
  if (!status.ok()) return;
  const std::string image = *dock->ExportPartition(names[0]);
  if (!next->ImportPartition(image).ok() || *next->ExportPartition(names[0]) != image) std::abort();
  UseUp(*dock, clock, names[0]);
}

// No fuzzer finds a checksum by itself.
std::string Signed(std::string bytes) {
  if (bytes.size() < kPartitionImageHeadBytes) return bytes;
  for (size_t at = kPartitionImageHeadBytes; at < bytes.size();) {
    const uint64_t size = NumberAt<uint64_t>(bytes, at + 32).value_or(0);
    if (size == 0 || size > bytes.size() - at) break;
    std::string frame = bytes.substr(at, size);
    SignFrame(frame);
    bytes.replace(at, size, frame);
    at += size;
  }
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data() + 16, &size, sizeof(size));
  const uint64_t checksum = XXH3_64bits(bytes.data(), 24);
  std::memcpy(bytes.data() + 24, &checksum, sizeof(checksum));
  return bytes;
}

}  // namespace
}  // namespace tdock::dock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  tdock::dock::Try(bytes);
  tdock::dock::Try(tdock::dock::Signed(bytes));
  return 0;
}
