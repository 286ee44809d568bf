#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <list>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/parquet_file.h"

namespace tdock::data {
namespace {

constexpr size_t kGroupsKept = 4;
constexpr size_t kPieceBytes = size_t{1} << 20;

absl::Status Damaged(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": not a sound Parquet file: ", EscapeForMessage(what, 200)));
}

// What Arrow reads from.
class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override {
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> GetSize() override { return static_cast<int64_t>(file_->size()); }

  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override {
    const auto size = static_cast<int64_t>(file_->size());
    if (position < 0 || bytes < 0 || position > size) return arrow::Status::IOError("a read beyond the file");
    bytes = std::min(bytes, size - position);
    const absl::Status read =
        file_->ReadAt(static_cast<uint64_t>(position), {static_cast<char*>(out), static_cast<size_t>(bytes)});
    if (!read.ok()) return arrow::Status::IOError(std::string(read.message()));
    return bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override {
    const int64_t left = std::max<int64_t>(static_cast<int64_t>(file_->size()) - position, 0);
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(std::clamp<int64_t>(bytes, 0, left)));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, buffer->size(), buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position_, bytes, out));
    position_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, bytes));
    position_ += buffer->size();
    return buffer;
  }

  ReadableFile& file() { return *file_; }

 private:
  const std::unique_ptr<ReadableFile> file_;
  int64_t position_ = 0;
  bool closed_ = false;
};

template <class ArrayType>
auto ValueAt(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

absl::StatusOr<Value> CellOf(const arrow::Array& array, int64_t row);

absl::StatusOr<Value> TextOf(std::string_view text) {
  if (FindInvalidUtf8({text.data(), text.size()})) return absl::InvalidArgumentError("its text is not valid UTF-8");
  return Value(std::string(text));
}

absl::StatusOr<Value> ListOf(const arrow::Array& items, int64_t begin, int64_t end) {
  List list;
  for (int64_t i = begin; i < end; ++i) {
    TDOCK_ASSIGN_OR_RETURN(Value item, CellOf(items, i));
    list.push_back(std::move(item));
  }
  return Value(std::move(list));
}

absl::StatusOr<Value> ObjectOf(const arrow::StructArray& fields, int64_t row) {
  Object object;
  for (int i = 0; i < fields.num_fields(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(Value value, CellOf(*fields.field(i), row));
    object.emplace_back(fields.struct_type()->field(i)->name(), std::move(value));
  }
  return Value(std::move(object));
}

absl::StatusOr<Value> CellOf(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return Value();
  switch (array.type_id()) {
    case arrow::Type::NA:
      return Value();
    case arrow::Type::BOOL:
      return Value(bool{ValueAt<arrow::BooleanArray>(array, row)});
    case arrow::Type::INT8:
      return Value(int64_t{ValueAt<arrow::Int8Array>(array, row)});
    case arrow::Type::INT16:
      return Value(int64_t{ValueAt<arrow::Int16Array>(array, row)});
    case arrow::Type::INT32:
      return Value(int64_t{ValueAt<arrow::Int32Array>(array, row)});
    case arrow::Type::INT64:
      return Value(int64_t{ValueAt<arrow::Int64Array>(array, row)});
    case arrow::Type::FLOAT:
      return Value(double{ValueAt<arrow::FloatArray>(array, row)});
    case arrow::Type::DOUBLE:
      return Value(double{ValueAt<arrow::DoubleArray>(array, row)});
    case arrow::Type::STRING:
      return TextOf(static_cast<const arrow::StringArray&>(array).GetView(row));
    case arrow::Type::LARGE_STRING:
      return TextOf(static_cast<const arrow::LargeStringArray&>(array).GetView(row));
    case arrow::Type::LIST: {
      const auto& list = static_cast<const arrow::ListArray&>(array);
      return ListOf(*list.values(), list.value_offset(row), list.value_offset(row + 1));
    }
    case arrow::Type::LARGE_LIST: {
      const auto& list = static_cast<const arrow::LargeListArray&>(array);
      return ListOf(*list.values(), list.value_offset(row), list.value_offset(row + 1));
    }
    case arrow::Type::STRUCT:
      return ObjectOf(static_cast<const arrow::StructArray&>(array), row);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("values of the type ", array.type()->ToString(), " are not supported"));
  }
}

class ParquetFile final : public RecordFile {
 public:
  static absl::StatusOr<std::unique_ptr<RecordFile>> Open(std::unique_ptr<ReadableFile> file, const std::string& name) {
    std::unique_ptr<ParquetFile> made(new ParquetFile(std::move(file), name));
    TDOCK_RETURN_IF_ERROR(made->Hash());
    try {
      const absl::Status opened = made->OpenReader();
      if (!opened.ok()) return opened;
    } catch (const std::exception& e) {  // parquet::ParquetException, and what the library lets through
      return Damaged(name, e.what());
    }
    return made;
  }

  int64_t size() const override { return begins_.back(); }
  const std::vector<std::string>& columns() const override { return columns_; }
  std::string Place(int64_t index) const override { return absl::StrCat(name_, ": record ", index + 1); }
  text::ContentHash content() const override { return content_; }

  std::vector<absl::StatusOr<Record>> Read(std::span<const int64_t> indexes,
                                           std::span<const std::string> wanted) const override {
    std::vector<absl::StatusOr<Record>> records;
    records.reserve(indexes.size());
    for (const int64_t index : indexes) {
      TDOCK_CHECK(index >= 0 && index < size(), "an index lies within the file");
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
      const auto group = static_cast<int>(after - begins_.begin()) - 1;
      absl::StatusOr<Record> record = ReadOne(group, index - begins_[static_cast<size_t>(group)], wanted);
      if (!record.ok()) record = Annotate(record.status(), Place(index));
      records.push_back(std::move(record));
    }
    return records;
  }

 private:
  struct Group {
    int number = 0;
    std::vector<std::string> wanted;
    std::vector<std::shared_ptr<arrow::Array>> columns;  // in the order of `wanted`; null: there is none
  };

  ParquetFile(std::unique_ptr<ReadableFile> file, std::string name)
      : name_(std::move(name)), file_(std::make_shared<ArrowFile>(std::move(file))) {}

  absl::Status Hash() {
    text::ContentHasher hasher;
    std::string piece;
    for (uint64_t at = 0; at < file_->file().size(); at += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, file_->file().size() - at));
      TDOCK_RETURN_IF_ERROR(file_->file().ReadAt(at, piece));
      hasher.Add(piece);
    }
    content_ = hasher.Value();
    return absl::OkStatus();
  }

  absl::Status OpenReader() {
    auto opened = parquet::arrow::OpenFile(file_, arrow::default_memory_pool());
    if (!opened.ok()) return Damaged(name_, opened.status().ToString());
    MutexLock lock(mu_);
    reader_ = std::move(opened).ValueUnsafe();
    const auto metadata = reader_->parquet_reader()->metadata();
    absl::flat_hash_set<std::string> seen;
    for (int leaf = 0; leaf < metadata->num_columns(); ++leaf) {
      leaf_names_.push_back(metadata->schema()->Column(leaf)->path()->ToDotVector()[0]);
      if (seen.insert(leaf_names_.back()).second) columns_.push_back(leaf_names_.back());
    }
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      const int64_t rows = metadata->RowGroup(group)->num_rows();
      if (rows < 0) return Damaged(name_, "a row group has a negative number of rows");
      begins_.push_back(begins_.back() + rows);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Record> ReadOne(int group, int64_t row, std::span<const std::string> wanted) const
      TDOCK_EXCLUDES(mu_) {
    TDOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Group> decoded, Decoded(group, wanted));
    Record record(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (decoded->columns[i] == nullptr) continue;
      if (row >= decoded->columns[i]->length())
        return absl::InvalidArgumentError("its row group has fewer rows than it says");
      absl::StatusOr<Value> cell = CellOf(*decoded->columns[i], row);
      if (!cell.ok()) return Annotate(cell.status(), absl::StrCat("column '", EscapeForMessage(wanted[i]), "'"));
      record[i] = *std::move(cell);
    }
    return record;
  }

  // The library's reader is used by one thread at a time; who waits for it waits for the decoding.
  absl::StatusOr<std::shared_ptr<const Group>> Decoded(int number, std::span<const std::string> wanted) const
      TDOCK_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if ((*kept)->number != number ||
          !std::equal(wanted.begin(), wanted.end(), (*kept)->wanted.begin(), (*kept)->wanted.end()))
        continue;
      kept_.splice(kept_.begin(), kept_, kept);
      return kept_.front();
    }
    auto group = std::make_shared<Group>();
    group->number = number;
    group->wanted.assign(wanted.begin(), wanted.end());
    try {
      TDOCK_RETURN_IF_ERROR(Decode(*group));
    } catch (const std::exception& e) {
      return absl::InvalidArgumentError(absl::StrCat("its row group cannot be read: ", e.what()));
    }
    kept_.push_front(std::move(group));
    if (kept_.size() > kGroupsKept) kept_.pop_back();
    return kept_.front();
  }

  absl::Status Decode(Group& group) const TDOCK_REQUIRES(mu_) {
    std::vector<int> leaves;
    for (size_t leaf = 0; leaf < leaf_names_.size(); ++leaf) {
      const auto is_wanted = std::find(group.wanted.begin(), group.wanted.end(), leaf_names_[leaf]);
      if (is_wanted != group.wanted.end()) leaves.push_back(static_cast<int>(leaf));
    }
    auto table = reader_->ReadRowGroup(group.number, leaves);
    if (table.ok()) table = (*table)->CombineChunks();
    const arrow::Status sound = table.ok() ? (*table)->ValidateFull() : table.status();
    if (!sound.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("its row group cannot be read: ", EscapeForMessage(sound.ToString(), 200)));
    }
    for (const std::string& name : group.wanted) {
      const auto column = (*table)->GetColumnByName(name);
      const bool has_rows = column != nullptr && column->num_chunks() == 1;
      group.columns.push_back(has_rows ? column->chunk(0) : nullptr);
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const std::shared_ptr<ArrowFile> file_;
  std::vector<std::string> columns_;
  std::vector<std::string> leaf_names_;  // of each leaf, the column that it is part of
  std::vector<int64_t> begins_ = {0};
  text::ContentHash content_;
  mutable Mutex mu_;
  std::unique_ptr<parquet::arrow::FileReader> reader_ TDOCK_GUARDED_BY(mu_);
  mutable std::list<std::shared_ptr<const Group>> kept_ TDOCK_GUARDED_BY(mu_);  // the latest first
};

}  // namespace
}  // namespace tdock::data

extern "C" void tdock_open_parquet(std::unique_ptr<tdock::ReadableFile> file, const std::string& name,
                                   absl::StatusOr<std::unique_ptr<tdock::data::RecordFile>>* opened) {
  *opened = tdock::data::ParquetFile::Open(std::move(file), name);
}
