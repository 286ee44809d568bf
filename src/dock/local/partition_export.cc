// A partition to bytes and back.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/no_memory.h"
#include "core/base/status.h"
#include "dock/local/partition.h"
#include "dock/local/partition_image.h"
#include "dock/table/name.h"
#include "dock/table/rows_data.h"

namespace tdock::dock {
namespace {

constexpr int64_t kMostGoneBytes = int64_t{1} << 61;

}  // namespace

absl::StatusOr<std::string> Partition::Export() {
  return OrNoMemory("the image of the partition", [this]() -> absl::StatusOr<std::string> {
    TDOCK_ASSIGN_OR_RETURN(const PartitionImage image, ImageNow());
    return EncodePartitionImage(image);
  });
}

absl::StatusOr<PartitionImage> Partition::ImageNow() {
  Cleanup cleanup{*this};
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(Begin(cleanup));
  PartitionImage image{.options = table_->options, .table = ImageOf(*table_)};
  image.gone_bytes = budget_.gone_bytes();
  image.writers.assign(writers_.names().begin(), writers_.names().end());
  for (TableImage::Column& column : image.table.columns) {
    image.cells.push_back(CellsOf(column));
    column.cells = {};
  }
  return image;
}

PartitionImage::Cells Partition::CellsOf(const TableImage::Column& column) const {
  PartitionImage::Cells cells;
  Rows::Data data;
  data.columns = std::make_shared<const std::vector<ColumnSpec>>(1, column.spec);
  uint32_t pinned = 0;
  for (const auto& [row, cell] : column.cells) {
    const std::shared_ptr<Block>& block = store_.BlockOf(cell);
    cells.rows.push_back(row);
    cells.partial.push_back(cell.partial());
    cells.versions.push_back(block->shape().weights_version);
    cells.writers.push_back(block->shape().writer);
    data.cells.push_back({.bytes = block->Row(store_.RowOf(cell.plain()))});
    if (cell.block != pinned) data.pins.push_back(block);
    pinned = cell.block;
  }
  data.ids = cells.rows;
  cells.values = std::move(data).ToRows();
  return cells;
}

absl::Status Partition::Restore(PartitionImage image) {
  if (image.gone_bytes < 0 || image.gone_bytes > kMostGoneBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("gone_bytes is ", image.gone_bytes, "; it must be 0 to ", kMostGoneBytes));
  }
  for (const TableImage::ConsumerState& consumer : image.table.consumers) {
    TDOCK_RETURN_IF_ERROR(CheckSamplerThere(consumer.options));
  }
  {
    MutexLock lock(mu_);
    for (const std::string& name : image.writers) {
      TDOCK_RETURN_IF_ERROR(CheckName("writer", name));
      if (!writers_.Find(name).has_value()) {
        writers_.NumberOf(name);
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat("writer '", name, "' is there twice"));
    }
  }
  for (uint32_t i = 0; i < image.cells.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(image.table.columns[i].cells,
                           WriteCells(image.cells[i], i, image.table.columns[i].spec.name));
  }
  MutexLock lock(mu_);
  TDOCK_RETURN_IF_ERROR(table_.Restore(image.table));
  specs_.resize(image.table.consumers.size());
  budget_.CountPut(image.gone_bytes);
  budget_.CountGone(image.gone_bytes);
  NoteLoad();
  return absl::OkStatus();
}

void Partition::SkipLeases(LeaseId last) {
  MutexLock lock(mu_);
  table_.SkipLeases(last);
}

absl::StatusOr<std::vector<TableImage::Cell>> Partition::WriteCells(const PartitionImage::Cells& cells, uint32_t column,
                                                                    const std::string& name) {
  std::vector<TableImage::Cell> written(cells.rows.size());
  // A block holds the cells of one version and one writer.
  std::map<std::pair<int64_t, uint32_t>, std::vector<int64_t>> together;
  for (size_t i = 0; i < cells.rows.size(); ++i) {
    together[{cells.versions[i], cells.writers[i]}].push_back(static_cast<int64_t>(i));
  }
  for (const auto& [made_by, places] : together) {
    for (std::span<const int64_t> rest = places; !rest.empty();) {
      const std::span<const int64_t> put = FirstToPut(std::get<Column>(cells.values), rest);
      rest = rest.subspan(put.size());
      Batch batch;
      TDOCK_RETURN_IF_ERROR(batch.Add(name, std::get<Column>(cells.values).Select(put)));
      TDOCK_ASSIGN_OR_RETURN(const CellRef first, WriteBatch(batch, column, made_by.first, made_by.second));
      for (size_t k = 0; k < put.size(); ++k) {
        const auto place = static_cast<size_t>(put[k]);
        CellRef ref{first.block, first.row + static_cast<uint32_t>(k)};
        if (cells.partial[place]) ref.row |= CellRef::kPartial;
        written[place] = {cells.rows[place], ref};
      }
    }
  }
  return written;
}

std::span<const int64_t> Partition::FirstToPut(const Column& values, std::span<const int64_t> places) {
  // So many that no block stays whole because of a few of its rows.
  constexpr size_t kMostRows = 1024;
  constexpr size_t kMuch = size_t{4} << 20;
  size_t count = 0, bytes = 0;
  while (count < std::min(places.size(), kMostRows) && bytes < kMuch) bytes += values.RowBytes(places[count++]).size();
  return places.first(count);
}

absl::StatusOr<CellRef> Partition::WriteBatch(const Batch& batch, uint32_t column, int64_t weights_version,
                                              uint32_t writer) {
  std::vector<BlockStore::Placement> placements;
  {
    MutexLock lock(mu_);
    placements = store_.Reserve(batch, std::span(&column, 1), weights_version, writer);
  }
  TDOCK_RETURN_IF_ERROR(Write(batch, {}, placements));
  MutexLock lock(mu_);
  budget_.CountPut(batch.columns().front().column.payload_bytes());
  return store_.Publish(batch, std::span(&column, 1), placements).front();
}

}  // namespace tdock::dock
