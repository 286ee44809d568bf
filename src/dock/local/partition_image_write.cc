// Writes the image of a partition.
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/checksum.h"
#include "dock/local/partition_image.h"
#include "dock/local/partition_image_fields.h"
#include "tdock/frame.h"

namespace tdock::dock {
namespace {

// Frames one behind the other, after the head. Not thread-safe.
class ImageWriter {
 public:
  explicit ImageWriter(size_t about_bytes) {
    bytes_.reserve(about_bytes);
    bytes_.resize(kPartitionImageHeadBytes, '\0');
  }

  absl::Status Add(const char* part, Batch batch, Meta meta = {}) {
    meta.emplace("part", part);
    TDOCK_ASSIGN_OR_RETURN(const EncodedFrame frame,
                           EncodeFrame(MetaBatch(std::move(batch), std::move(meta)), kImageFrameLimits));
    for (absl::string_view piece : frame.Pieces()) bytes_.append(piece.data(), piece.size());
    return absl::OkStatus();
  }

  std::string Finish() && {
    char* const head = bytes_.data();
    const uint64_t size = bytes_.size();
    std::memcpy(head, kImageMagic.data(), kImageMagic.size());
    std::memcpy(head + kImageVersionAt, &kPartitionImageVersion, sizeof(kPartitionImageVersion));
    std::memcpy(head + kImageBytesAt, &size, sizeof(size));
    const uint64_t checksum = Checksum(std::as_bytes(std::span(bytes_).first(kSummedHeadBytes)));
    std::memcpy(head + kSummedHeadBytes, &checksum, sizeof(checksum));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// A dense column of what `value_of` gives for each thing; unsigned numbers as the signed number of the same bits.
template <class T, class Things, class ValueOf>
Column Numbers(const Things& things, ValueOf value_of) {
  std::vector<T> numbers;
  numbers.reserve(things.size());
  for (const auto& thing : things) numbers.push_back(static_cast<T>(value_of(thing)));
  return *Column::FromValues(numbers);
}

absl::StatusOr<Batch> BatchOf(const std::vector<std::pair<const char*, Column>>& columns) {
  Batch batch;
  for (const auto& [name, column] : columns) TDOCK_RETURN_IF_ERROR(batch.Add(name, column));
  return batch;
}

absl::Status AddPartition(const PartitionImage& image, ImageWriter& writer) {
  FieldWriter fields;
  VisitImage(fields, image);
  Meta meta = std::move(fields).Take();
  MetaValue::List consumers;
  for (const TableImage::ConsumerState& state : image.table.consumers) {
    FieldWriter of_consumer;
    VisitImage(of_consumer, state);
    consumers.push_back(std::move(of_consumer).Take());
  }
  meta.emplace("consumers", std::move(consumers));
  meta.emplace("option_columns", static_cast<int64_t>(image.options.columns.size()));
  return writer.Add("partition", Batch(), std::move(meta));
}

absl::Status AddGroups(const std::vector<TableImage::GroupState>& groups, ImageWriter& writer) {
  Batch batch;
  absl::Status added;
  TableImage::GroupState::VisitFields([&](const char* name, auto field) {
    using Number = std::make_signed_t<std::remove_cvref_t<decltype(groups[0].*field)>>;
    added.Update(batch.Add(name, Numbers<Number>(groups, [field](const auto& group) { return group.*field; })));
  });
  TDOCK_RETURN_IF_ERROR(added);
  return writer.Add("groups", std::move(batch));
}

absl::Status AddRows(const TableImage& table, ImageWriter& writer) {
  using Row = TableImage::Row;
  const auto& rows = table.rows;
  std::vector<std::string> keys;
  keys.reserve(rows.size());
  for (const Row& row : rows) keys.push_back(row.label.key);
  TDOCK_ASSIGN_OR_RETURN(Batch batch,
                         BatchOf({{"id", Numbers<int64_t>(rows, [](const Row& row) { return row.id; })},
                                  {"group", Numbers<int64_t>(rows, [](const Row& row) { return row.group; })},
                                  {"dropped", Numbers<bool>(rows, [](const Row& row) { return row.dropped; })},
                                  {"age", Numbers<int32_t>(rows, [](const Row& row) { return row.history.age; })},
                                  {"epoch", Numbers<int32_t>(rows, [](const Row& row) { return row.history.epoch; })},
                                  {"key", Column::FromStrings(keys)}}));
  return writer.Add("rows", std::move(batch));
}

absl::Status AddTags(const TableImage& table, ImageWriter& writer) {
  std::vector<int64_t> rows;
  std::vector<std::string> names, values;
  for (const TableImage::Row& row : table.rows) {
    if (row.label.tags == nullptr) continue;
    for (const auto& [name, value] : *row.label.tags) {
      rows.push_back(static_cast<int64_t>(row.id));
      names.push_back(name);
      values.push_back(value);
    }
  }
  TDOCK_ASSIGN_OR_RETURN(Batch batch, BatchOf({{"row", *Column::FromValues(rows)},
                                               {"name", Column::FromStrings(names)},
                                               {"value", Column::FromStrings(values)}}));
  return writer.Add("tags", std::move(batch));
}

absl::Status AddPieces(const TableImage& table, ImageWriter& writer) {
  std::vector<int64_t> rows, ends, versions;
  std::vector<int32_t> columns;
  for (const TableImage::Row& row : table.rows) {
    for (const auto& [column, pieces] : row.history.pieces) {
      for (const Piece& piece : pieces) {
        rows.push_back(static_cast<int64_t>(row.id));
        columns.push_back(static_cast<int32_t>(column));
        ends.push_back(piece.end);
        versions.push_back(piece.weights_version);
      }
    }
  }
  TDOCK_ASSIGN_OR_RETURN(Batch batch, BatchOf({{"row", *Column::FromValues(rows)},
                                               {"column", *Column::FromValues(columns)},
                                               {"end", *Column::FromValues(ends)},
                                               {"version", *Column::FromValues(versions)}}));
  return writer.Add("pieces", std::move(batch));
}

// A number that each consumer has for some rows: one list behind the other.
template <class List, class NumberOf>
absl::Status AddByConsumer(const char* part, const char* what, const TableImage& table, List list, NumberOf number_of,
                           ImageWriter& writer) {
  std::vector<int32_t> consumers;
  std::vector<int64_t> rows, numbers;
  for (size_t i = 0; i < table.consumers.size(); ++i) {
    for (const auto& each : table.consumers[i].*list) {
      consumers.push_back(static_cast<int32_t>(i));
      rows.push_back(static_cast<int64_t>(each.row));
      numbers.push_back(each.*number_of);
    }
  }
  TDOCK_ASSIGN_OR_RETURN(Batch batch, BatchOf({{"consumer", *Column::FromValues(consumers)},
                                               {"row", *Column::FromValues(rows)},
                                               {what, *Column::FromValues(numbers)}}));
  return writer.Add(part, std::move(batch));
}

absl::StatusOr<Column> ValuesOf(const PartitionImage::Cells& cells, const ColumnSpec& spec) {
  if (const auto* const values = std::get_if<Column>(&cells.values)) return *values;
  if (cells.rows.empty()) return Column::Empty(spec.type);
  return std::get<Rows>(cells.values).ToColumn(spec.name);
}

absl::Status AddCells(const PartitionImage::Cells& cells, const TableImage::Column& column, ImageWriter& writer) {
  const auto itself = [](auto value) { return value; };
  TDOCK_ASSIGN_OR_RETURN(Batch batch, BatchOf({{"row", Numbers<int64_t>(cells.rows, itself)},
                                               {"partial", *Column::FromValues(cells.partial)},
                                               {"version", *Column::FromValues(cells.versions)},
                                               {"writer", Numbers<int32_t>(cells.writers, itself)}}));
  if (column.typed) TDOCK_RETURN_IF_ERROR(batch.Add("value", ValuesOf(cells, column.spec)));
  return Annotate(writer.Add("cells", std::move(batch), {{"column", column.spec.name}}),
                  absl::StrCat("column '", column.spec.name, "'"));
}

// A little more than an image needs, unless it has many tags or the like.
size_t AboutBytes(const PartitionImage& image) {
  constexpr size_t kOfACell = 40, kOfARow = 64, kOfTheRest = size_t{1} << 16;
  size_t bytes = kOfTheRest + image.table.rows.size() * kOfARow;
  for (const PartitionImage::Cells& cells : image.cells) {
    bytes += cells.rows.size() * kOfACell + 4096;
    const auto* const views = std::get_if<Rows>(&cells.values);
    for (size_t i = 0; views != nullptr && i < cells.rows.size(); ++i) bytes += views->cell(i, 0).bytes.size();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> EncodePartitionImage(const PartitionImage& image) {
  const TableImage& table = image.table;
  ImageWriter writer(AboutBytes(image));
  TDOCK_RETURN_IF_ERROR(AddPartition(image, writer));
  TDOCK_RETURN_IF_ERROR(AddGroups(table.groups, writer));
  TDOCK_RETURN_IF_ERROR(AddRows(table, writer));
  TDOCK_RETURN_IF_ERROR(AddTags(table, writer));
  TDOCK_RETURN_IF_ERROR(
      AddByConsumer("done", "step", table, &TableImage::ConsumerState::done, &TableImage::DoneRow::step, writer));
  TDOCK_RETURN_IF_ERROR(AddByConsumer("redeliveries", "count", table, &TableImage::ConsumerState::redeliveries,
                                      &TableImage::Redelivery::count, writer));
  TDOCK_RETURN_IF_ERROR(AddPieces(table, writer));
  for (size_t i = 0; i < image.cells.size(); ++i) {
    TDOCK_RETURN_IF_ERROR(AddCells(image.cells[i], table.columns[i], writer));
  }
  return std::move(writer).Finish();
}

}  // namespace tdock::dock
