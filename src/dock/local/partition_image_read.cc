// Reads the image of a partition.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/checksum.h"
#include "core/tensor/frame_header.h"
#include "dock/local/nan.h"
#include "dock/local/partition_image.h"
#include "dock/local/partition_image_fields.h"
#include "dock/local/text.h"
#include "tdock/frame.h"

namespace tdock::dock {
namespace {

absl::Status NoImage(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("these bytes are not the image of a partition: ", why));
}

absl::Status CheckHead(absl::string_view bytes) {
  if (bytes.substr(0, kImageMagic.size()) != kImageMagic) return NoImage("they begin otherwise");
  if (bytes.size() < kPartitionImageHeadBytes) {
    return absl::DataLossError(absl::StrCat("the image of a partition is truncated: it has ", bytes.size(), " bytes"));
  }
  uint64_t version, size, checksum;
  std::memcpy(&version, bytes.data() + kImageVersionAt, sizeof(version));
  std::memcpy(&size, bytes.data() + kImageBytesAt, sizeof(size));
  std::memcpy(&checksum, bytes.data() + kSummedHeadBytes, sizeof(checksum));
  if (checksum != Checksum(std::as_bytes(std::span(bytes).first(kSummedHeadBytes)))) {
    return absl::DataLossError("the image of a partition is damaged: the checksum of its head does not match");
  }
  if (version != kPartitionImageVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the image of a partition has version ", version,
                                                      " of the format; this program reads version ",
                                                      kPartitionImageVersion, ": use one that reads the other"));
  }
  if (size != bytes.size()) {
    return absl::DataLossError(absl::StrCat("the image of a partition is truncated, or too long: it has ", bytes.size(),
                                            " bytes, and should have ", size));
  }
  const absl::string_view rest = bytes.substr(0, kPartitionImageHeadBytes).substr(kSummedHeadBytes + sizeof(checksum));
  if (std::all_of(rest.begin(), rest.end(), [](char byte) { return byte == 0; })) return absl::OkStatus();
  return absl::DataLossError("the image of a partition is damaged: its head does not end with zeros");
}

// The frames in their order. Not thread-safe.
class ImageReader {
 public:
  // `image` has a valid head.
  explicit ImageReader(Buffer image) : image_(std::move(image)) {}

  bool done() const { return at_ == image_.size(); }

  absl::StatusOr<MetaBatch> Next(const char* part) {
    const std::string where = absl::StrCat("the image of a partition, part '", part, "' at byte ", at_);
    absl::StatusOr<MetaBatch> frame = DecodeNext();
    if (!frame.ok()) return Annotate(frame.status(), where);
    const auto it = frame->meta().find("part");
    const std::string* const found = it == frame->meta().end() ? nullptr : it->second.As<std::string>();
    if (found != nullptr && *found == part) return frame;
    return absl::InvalidArgumentError(absl::StrCat(where, ": it is another part"));
  }

 private:
  absl::StatusOr<MetaBatch> DecodeNext() {
    const size_t left = image_.size() - at_;
    if (left < kFramePreludeBytes) return FrameTooShort(left);
    const Buffer rest = image_.Slice(at_, left);
    TDOCK_RETURN_IF_ERROR(CheckFrameStart(rest.bytes()));
    TDOCK_ASSIGN_OR_RETURN(const FramePrelude prelude, ReadFramePrelude(rest.bytes(), kImageFrameLimits));
    if (prelude.frame_bytes > left) return WrongFrameSize(prelude.frame_bytes, left);
    at_ += prelude.frame_bytes;
    return DecodeFrame(rest.Slice(0, prelude.frame_bytes), kImageFrameLimits);
  }

  const Buffer image_;
  size_t at_ = kPartitionImageHeadBytes;
};

// The numbers of a dense column, of which each row has one.
template <class T>
absl::StatusOr<std::span<const T>> NumbersOf(const MetaBatch& part, absl::string_view name) {
  TDOCK_ASSIGN_OR_RETURN(const Column column, part.columns().Get(name));
  if (column.type() == ColumnType::Dense(kDTypeOf<T>)) return part.columns().Values<T>(name);
  return absl::InvalidArgumentError(absl::StrCat("column '", name, "' of an image holds ", ToString(column.type()),
                                                 ", not ", ToString(ColumnType::Dense(kDTypeOf<T>))));
}

absl::StatusOr<Column> TextsOf(const MetaBatch& part, absl::string_view name) {
  TDOCK_ASSIGN_OR_RETURN(const Column column, part.columns().Get(name));
  if (column.type().kind == ColumnKind::kBytes) return column;
  return absl::InvalidArgumentError(
      absl::StrCat("column '", name, "' of an image holds ", ToString(column.type()), ", not bytes"));
}

absl::Status ReadPartition(const MetaBatch& part, PartitionImage& image, int64_t& option_columns) {
  FieldReader fields(part.meta());
  VisitImage(fields, image);
  fields("option_columns", option_columns);
  TDOCK_RETURN_IF_ERROR(fields.status());
  const auto it = part.meta().find("consumers");
  const auto* const consumers = it == part.meta().end() ? nullptr : it->second.As<MetaValue::List>();
  if (consumers == nullptr) return NoImage("it has no list of consumers");
  for (const MetaValue& each : *consumers) {
    const Meta* const meta = each.As<Meta>();
    if (meta == nullptr) return NoImage("a consumer is no map");
    FieldReader of_consumer(*meta);
    VisitImage(of_consumer, image.table.consumers.emplace_back());
    TDOCK_RETURN_IF_ERROR(of_consumer.status());
  }
  return absl::OkStatus();
}

absl::Status ReadGroups(const MetaBatch& part, std::vector<TableImage::GroupState>& groups) {
  absl::Status read;
  TableImage::GroupState::VisitFields([&](const char* name, auto field) {
    using Value = std::remove_cvref_t<decltype(groups[0].*field)>;
    const auto numbers = NumbersOf<std::make_signed_t<Value>>(part, name);
    read.Update(numbers.status());
    if (!read.ok()) return;
    groups.resize(numbers->size());
    for (size_t i = 0; i < groups.size(); ++i) groups[i].*field = static_cast<Value>((*numbers)[i]);
  });
  return read;
}

absl::Status ReadRows(const MetaBatch& part, TableImage& table) {
  TDOCK_ASSIGN_OR_RETURN(const auto ids, NumbersOf<int64_t>(part, "id"));
  TDOCK_ASSIGN_OR_RETURN(const auto groups, NumbersOf<int64_t>(part, "group"));
  TDOCK_ASSIGN_OR_RETURN(const auto dropped, NumbersOf<bool>(part, "dropped"));
  TDOCK_ASSIGN_OR_RETURN(const auto ages, NumbersOf<int32_t>(part, "age"));
  TDOCK_ASSIGN_OR_RETURN(const auto epochs, NumbersOf<int32_t>(part, "epoch"));
  TDOCK_ASSIGN_OR_RETURN(const Column keys, TextsOf(part, "key"));
  for (size_t i = 0; i < ids.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view key, keys.Text(static_cast<int64_t>(i)));
    table.rows.push_back({.id = static_cast<RowId>(ids[i]),
                          .group = static_cast<GroupId>(groups[i]),
                          .dropped = dropped[i],
                          .label = {.key = std::string(key)},
                          .history = {.age = ages[i], .epoch = static_cast<uint32_t>(epochs[i])}});
    if (i > 0 && table.rows[i].id <= table.rows[i - 1].id) return NoImage("its rows are not ascending");
  }
  return absl::OkStatus();
}

// Finds rows that are asked for in ascending order.
class RowFinder {
 public:
  explicit RowFinder(std::vector<TableImage::Row>& rows) : next_(rows.begin()), end_(rows.end()) {}

  absl::StatusOr<TableImage::Row*> Find(int64_t row) {
    while (next_ != end_ && next_->id < static_cast<RowId>(row)) ++next_;
    if (next_ != end_ && next_->id == static_cast<RowId>(row)) return &*next_;
    return NoImage(absl::StrCat("row ", row, " is named, and is not there, or not in this place"));
  }

 private:
  std::vector<TableImage::Row>::iterator next_;
  const std::vector<TableImage::Row>::iterator end_;
};

absl::Status ReadTags(const MetaBatch& part, TableImage& table) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, NumbersOf<int64_t>(part, "row"));
  TDOCK_ASSIGN_OR_RETURN(const Column names, TextsOf(part, "name"));
  TDOCK_ASSIGN_OR_RETURN(const Column values, TextsOf(part, "value"));
  RowFinder finder(table.rows);
  std::shared_ptr<const Tags> before;
  for (size_t i = 0; i < rows.size();) {
    TDOCK_ASSIGN_OR_RETURN(TableImage::Row* const row, finder.Find(rows[i]));
    Tags tags;
    const size_t begin = i;
    for (; i < rows.size() && rows[i] == rows[begin]; ++i) {
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view name, names.Text(static_cast<int64_t>(i)));
      TDOCK_ASSIGN_OR_RETURN(const absl::string_view value, values.Text(static_cast<int64_t>(i)));
      tags.emplace(std::string(name), std::string(value));
    }
    if (tags.size() != i - begin) return NoImage(absl::StrCat("row ", row->id, " has a tag twice"));
    // The rows of a put often have the same.
    if (before == nullptr || *before != tags) before = std::make_shared<const Tags>(std::move(tags));
    row->label.tags = before;
  }
  return absl::OkStatus();
}

absl::Status ReadPieces(const MetaBatch& part, TableImage& table) {
  TDOCK_ASSIGN_OR_RETURN(const auto rows, NumbersOf<int64_t>(part, "row"));
  TDOCK_ASSIGN_OR_RETURN(const auto columns, NumbersOf<int32_t>(part, "column"));
  TDOCK_ASSIGN_OR_RETURN(const auto ends, NumbersOf<int64_t>(part, "end"));
  TDOCK_ASSIGN_OR_RETURN(const auto versions, NumbersOf<int64_t>(part, "version"));
  RowFinder finder(table.rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(TableImage::Row* const row, finder.Find(rows[i]));
    row->history.pieces[static_cast<uint32_t>(columns[i])].push_back({ends[i], versions[i]});
  }
  return absl::OkStatus();
}

// Calls `add(state, row, number)` for each; false: there can be no such.
template <class Add>
absl::Status ReadByConsumer(const MetaBatch& part, const char* what, TableImage& table, Add add) {
  TDOCK_ASSIGN_OR_RETURN(const auto consumers, NumbersOf<int32_t>(part, "consumer"));
  TDOCK_ASSIGN_OR_RETURN(const auto rows, NumbersOf<int64_t>(part, "row"));
  TDOCK_ASSIGN_OR_RETURN(const auto numbers, NumbersOf<int64_t>(part, what));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (consumers[i] < 0 || static_cast<size_t>(consumers[i]) >= table.consumers.size()) {
      return NoImage(absl::StrCat("there is no consumer ", consumers[i]));
    }
    if (add(table.consumers[static_cast<size_t>(consumers[i])], static_cast<RowId>(rows[i]), numbers[i])) continue;
    return NoImage(absl::StrCat("row ", rows[i], " of a consumer has a ", what, " of ", numbers[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckCells(const PartitionImage& image, const PartitionImage::Cells& cells) {
  for (size_t i = 0; i < cells.rows.size(); ++i) {
    if (i > 0 && cells.rows[i] <= cells.rows[i - 1]) return NoImage("its cells are not in the order of their rows");
    if (cells.versions[i] >= kNoWeightsVersion && cells.writers[i] <= image.writers.size()) continue;
    return NoImage(absl::StrCat("the cell of row ", cells.rows[i], " has weights version ", cells.versions[i],
                                " and writer ", cells.writers[i], " of ", image.writers.size()));
  }
  return absl::OkStatus();
}

absl::Status ReadCells(const MetaBatch& part, PartitionImage& image) {
  FieldReader fields(part.meta());
  TableImage::Column& column = image.table.columns.emplace_back();
  fields("column", column.spec.name);
  TDOCK_RETURN_IF_ERROR(fields.status());
  TDOCK_ASSIGN_OR_RETURN(const auto rows, NumbersOf<int64_t>(part, "row"));
  TDOCK_ASSIGN_OR_RETURN(const auto partial, NumbersOf<bool>(part, "partial"));
  TDOCK_ASSIGN_OR_RETURN(const auto versions, NumbersOf<int64_t>(part, "version"));
  TDOCK_ASSIGN_OR_RETURN(const auto writers, NumbersOf<int32_t>(part, "writer"));
  PartitionImage::Cells& cells = image.cells.emplace_back();
  cells.rows.assign(rows.begin(), rows.end());
  cells.partial.assign(partial.begin(), partial.end());
  cells.versions.assign(versions.begin(), versions.end());
  cells.writers.assign(writers.begin(), writers.end());
  TDOCK_RETURN_IF_ERROR(CheckCells(image, cells));
  const Column* const values = part.columns().Find("value");
  column.typed = values != nullptr;
  if (!column.typed) return cells.rows.empty() ? absl::OkStatus() : NoImage("a column has cells and no type");
  column.spec.type = values->type();
  cells.values = *values;
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add(column.spec.name, *values));
  if (IsText(values->type())) TDOCK_RETURN_IF_ERROR(CheckText(batch, std::vector<size_t>{0}));
  return image.options.refuse_nan ? CheckNoNan(batch) : absl::OkStatus();
}

// The pieces of a list are parts of it, and the last one ends with it; what is no list is one item.
bool AreOf(const std::vector<Piece>& pieces, bool is_list, int64_t length) {
  int64_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.weights_version < kNoWeightsVersion || piece.end != (is_list ? std::max(piece.end, end + 1) : 1)) {
      return false;
    }
    end = piece.end;
  }
  return end == length;
}

absl::Status CheckPieces(const PartitionImage& image) {
  for (const TableImage::Row& row : image.table.rows) {
    for (const auto& [column, pieces] : row.history.pieces) {
      const auto wrong = [&, column = column] {
        return NoImage(absl::StrCat("the pieces of column ", column, " of row ", row.id, " do not make up a cell"));
      };
      if (column >= image.cells.size()) return wrong();
      const PartitionImage::Cells& cells = image.cells[column];
      const auto cell = std::lower_bound(cells.rows.begin(), cells.rows.end(), row.id);
      if (cell == cells.rows.end() || *cell != row.id) return wrong();
      const Column& values = std::get<Column>(cells.values);
      const bool is_list = values.type().kind != ColumnKind::kDense;
      if (!AreOf(pieces, is_list, is_list ? values.Length(cell - cells.rows.begin()) : 1)) return wrong();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PartitionImage> Read(ImageReader& reader) {
  PartitionImage image;
  TableImage& table = image.table;
  int64_t option_columns = 0;
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch partition, reader.Next("partition"));
  TDOCK_RETURN_IF_ERROR(ReadPartition(partition, image, option_columns));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch groups, reader.Next("groups"));
  TDOCK_RETURN_IF_ERROR(ReadGroups(groups, table.groups));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch rows, reader.Next("rows"));
  TDOCK_RETURN_IF_ERROR(ReadRows(rows, table));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch tags, reader.Next("tags"));
  TDOCK_RETURN_IF_ERROR(ReadTags(tags, table));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch done, reader.Next("done"));
  TDOCK_RETURN_IF_ERROR(ReadByConsumer(done, "step", table, [](auto& consumer, RowId row, int64_t step) {
    consumer.done.push_back({row, step});
    return step >= kNoStep;
  }));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch redeliveries, reader.Next("redeliveries"));
  TDOCK_RETURN_IF_ERROR(ReadByConsumer(redeliveries, "count", table, [](auto& consumer, RowId row, int64_t count) {
    consumer.redeliveries.push_back({row, static_cast<int32_t>(count)});
    return count > 0 && count <= INT32_MAX;
  }));
  TDOCK_ASSIGN_OR_RETURN(const MetaBatch pieces, reader.Next("pieces"));
  TDOCK_RETURN_IF_ERROR(ReadPieces(pieces, table));
  while (!reader.done()) {
    TDOCK_ASSIGN_OR_RETURN(const MetaBatch cells, reader.Next("cells"));
    absl::Status status = ReadCells(cells, image);
    if (!status.ok()) return Annotate(status, absl::StrCat("column ", image.cells.size()));
  }
  TDOCK_RETURN_IF_ERROR(CheckPieces(image));
  if (option_columns < 0 || static_cast<size_t>(option_columns) > table.columns.size()) {
    return NoImage(
        absl::StrCat("it has ", table.columns.size(), " columns, of which the options name ", option_columns));
  }
  for (int64_t i = 0; i < option_columns; ++i) {
    image.options.columns.push_back(table.columns[static_cast<size_t>(i)].spec);
  }
  return image;
}

}  // namespace

absl::StatusOr<PartitionImage> DecodePartitionImage(absl::string_view bytes) {
  TDOCK_RETURN_IF_ERROR(CheckHead(bytes));
  // Columns must be aligned; a string usually is.
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % alignof(int64_t) == 0;
  ImageReader reader(aligned ? Buffer::Wrap(bytes.data(), bytes.size(), nullptr)
                             : Buffer::CopyOf(std::as_bytes(std::span(bytes))));
  return Read(reader);
}

}  // namespace tdock::dock
