#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/byte_size.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <list>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/parquet_file.h"

namespace tdock::data {
namespace {

constexpr int64_t kKeptBytes = int64_t{256} << 20;  // of decoded row groups
constexpr size_t kMaxBadGroups = 10'000;            // whose errors are kept
constexpr size_t kPieceBytes = size_t{1} << 20;

// Carries an error of the file itself through Arrow, which has no code of its own for it: damage is an IOError too.
class FileErrorDetail final : public arrow::StatusDetail {
 public:
  static constexpr absl::string_view kTypeId = "tdock file error";
  explicit FileErrorDetail(absl::Status error) : error_(std::move(error)) {}
  const char* type_id() const override { return kTypeId.data(); }
  std::string ToString() const override { return std::string(error_.message()); }
  const absl::Status& error() const { return error_; }

 private:
  const absl::Status error_;
};

// InvalidArgument only for what the bytes of the file are to blame for.
absl::Status ErrorOf(const arrow::Status& status, absl::string_view what) {
  const auto& detail = status.detail();
  if (detail != nullptr && detail->type_id() == FileErrorDetail::kTypeId) {
    return static_cast<const FileErrorDetail&>(*detail).error();
  }
  const std::string message = absl::StrCat(what, ": ", EscapeForMessage(status.message(), 200));
  return status.IsOutOfMemory() ? absl::ResourceExhaustedError(message) : absl::InvalidArgumentError(message);
}

// The library throws some of its errors, and lets through those of others.
template <class Work>
arrow::Status Caught(const Work& work) {
  try {
    return work();
  } catch (const parquet::ParquetStatusException& e) {
    return e.status();
  } catch (const std::bad_alloc&) {
    return arrow::Status::OutOfMemory("there is no memory for it");
  } catch (const std::exception& e) {
    return arrow::Status::Invalid(e.what());
  }
}

// What Arrow reads from.
class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(std::shared_ptr<ReadableFile> file) : file_(std::move(file)) {}

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
    if (!read.ok()) {
      return arrow::Status(arrow::StatusCode::IOError, std::string(read.message()),
                           std::make_shared<FileErrorDetail>(read));
    }
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

 private:
  const std::shared_ptr<ReadableFile> file_;
  int64_t position_ = 0;
  bool closed_ = false;
};

// Memory of a reader, which gives only so much of it. Thread-safe.
class BoundedPool final : public arrow::MemoryPool {
 public:
  using arrow::MemoryPool::Allocate;
  using arrow::MemoryPool::Free;
  using arrow::MemoryPool::Reallocate;

  // From now on this many bytes more than are in use.
  void Allow(int64_t bytes) {
    most_ = in_use_ + bytes;
    refused_ = false;
  }
  // True if more was asked for since then.
  bool refused() const { return refused_; }

  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    ARROW_RETURN_NOT_OK(Take(size));
    const arrow::Status status = base_->Allocate(size, alignment, out);
    if (!status.ok()) in_use_ -= size;
    return status;
  }
  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** data) override {
    ARROW_RETURN_NOT_OK(Take(new_size - old_size));
    const arrow::Status status = base_->Reallocate(old_size, new_size, alignment, data);
    if (!status.ok()) in_use_ -= new_size - old_size;
    return status;
  }
  void Free(uint8_t* buffer, int64_t size, int64_t alignment) override {
    base_->Free(buffer, size, alignment);
    in_use_ -= size;
  }
  int64_t bytes_allocated() const override { return in_use_; }
  int64_t total_bytes_allocated() const override { return taken_; }
  int64_t num_allocations() const override { return allocations_; }
  std::string backend_name() const override { return base_->backend_name(); }

 private:
  arrow::Status Take(int64_t more) {
    if (more > 0) {
      if (more > most_ - in_use_) {
        refused_ = true;
        return arrow::Status::OutOfMemory("it takes more memory than it may");
      }
      taken_ += more;
      ++allocations_;
    }
    in_use_ += more;
    return arrow::Status::OK();
  }

  arrow::MemoryPool* const base_ = arrow::default_memory_pool();
  std::atomic<int64_t> in_use_ = 0, most_ = 0, taken_ = 0, allocations_ = 0;
  std::atomic<bool> refused_ = false;
};

template <class ArrayType>
auto ValueAt(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

// Reads the cells of one record, within limits. Its bytes are those of its texts, and 8 for every other value.
class CellReader {
 public:
  explicit CellReader(const RecordLimits& limits) : limits_(limits), bytes_left_(limits.max_record_bytes) {}

  // `depth`: in how many objects and lists it lies.
  absl::StatusOr<Value> CellOf(const arrow::Array& array, int64_t row, int depth) {
    if (array.IsNull(row) || array.type_id() == arrow::Type::NA) {
      TDOCK_RETURN_IF_ERROR(Take(8));
      return Value();
    }
    switch (array.type_id()) {
      case arrow::Type::BOOL:
        return NumberOf<bool>(ValueAt<arrow::BooleanArray>(array, row));
      case arrow::Type::INT8:
        return NumberOf<int64_t>(ValueAt<arrow::Int8Array>(array, row));
      case arrow::Type::INT16:
        return NumberOf<int64_t>(ValueAt<arrow::Int16Array>(array, row));
      case arrow::Type::INT32:
        return NumberOf<int64_t>(ValueAt<arrow::Int32Array>(array, row));
      case arrow::Type::INT64:
        return NumberOf<int64_t>(ValueAt<arrow::Int64Array>(array, row));
      case arrow::Type::FLOAT:
        return NumberOf<double>(ValueAt<arrow::FloatArray>(array, row));
      case arrow::Type::DOUBLE:
        return NumberOf<double>(ValueAt<arrow::DoubleArray>(array, row));
      case arrow::Type::STRING:
        return TextOf(static_cast<const arrow::StringArray&>(array).GetView(row));
      case arrow::Type::LARGE_STRING:
        return TextOf(static_cast<const arrow::LargeStringArray&>(array).GetView(row));
      case arrow::Type::LIST: {
        const auto& list = static_cast<const arrow::ListArray&>(array);
        return ListOf(*list.values(), list.value_offset(row), list.value_offset(row + 1), depth + 1);
      }
      case arrow::Type::LARGE_LIST: {
        const auto& list = static_cast<const arrow::LargeListArray&>(array);
        return ListOf(*list.values(), list.value_offset(row), list.value_offset(row + 1), depth + 1);
      }
      case arrow::Type::STRUCT:
        return ObjectOf(static_cast<const arrow::StructArray&>(array), row, depth + 1);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("values of the type ", EscapeForMessage(array.type()->ToString(), 200), " are not supported"));
    }
  }

 private:
  absl::Status Take(int64_t bytes) {
    bytes_left_ -= bytes;
    if (bytes_left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the record has more than ", limits_.max_record_bytes, " bytes, the maximum"));
  }

  absl::Status Enter(int depth) {
    if (depth <= limits_.max_depth) return Take(8);
    return absl::InvalidArgumentError(absl::StrCat("more than ", limits_.max_depth, " nested objects and lists"));
  }

  template <class T>
  absl::StatusOr<Value> NumberOf(T number) {
    TDOCK_RETURN_IF_ERROR(Take(8));
    return Value(number);
  }

  absl::StatusOr<Value> TextOf(std::string_view text) {
    TDOCK_RETURN_IF_ERROR(Take(static_cast<int64_t>(text.size())));
    if (FindInvalidUtf8({text.data(), text.size()})) return absl::InvalidArgumentError("its text is not valid UTF-8");
    return Value(std::string(text));
  }

  absl::StatusOr<Value> ListOf(const arrow::Array& items, int64_t begin, int64_t end, int depth) {
    TDOCK_RETURN_IF_ERROR(Enter(depth));
    List list;
    for (int64_t i = begin; i < end; ++i) {
      TDOCK_ASSIGN_OR_RETURN(Value item, CellOf(items, i, depth));
      list.push_back(std::move(item));
    }
    return Value(std::move(list));
  }

  absl::StatusOr<Value> ObjectOf(const arrow::StructArray& fields, int64_t row, int depth) {
    TDOCK_RETURN_IF_ERROR(Enter(depth));
    Object object;
    for (int i = 0; i < fields.num_fields(); ++i) {
      TDOCK_ASSIGN_OR_RETURN(Value value, CellOf(*fields.field(i), row, depth));
      object.emplace_back(fields.struct_type()->field(i)->name(), std::move(value));
    }
    return Value(std::move(object));
  }

  const RecordLimits& limits_;
  int64_t bytes_left_;
};

// A name that comes twice in a group of fields, or in one inside it; none: empty.
std::string NameTwice(const parquet::schema::GroupNode& group) {
  absl::flat_hash_set<std::string> seen;
  for (int i = 0; i < group.field_count(); ++i) {
    const auto& field = group.field(i);
    if (!seen.insert(field->name()).second) return field->name();
    if (!field->is_group()) continue;
    if (std::string twice = NameTwice(static_cast<const parquet::schema::GroupNode&>(*field)); !twice.empty())
      return absl::StrCat(field->name(), ".", twice);
  }
  return "";
}

class ParquetFile final : public RecordFile {
 public:
  static absl::StatusOr<std::unique_ptr<RecordFile>> Open(std::unique_ptr<ReadableFile> file, const std::string& name,
                                                          const RecordLimits& limits) {
    std::unique_ptr<ParquetFile> made(new ParquetFile(std::move(file), name, limits));
    TDOCK_RETURN_IF_ERROR(made->Hash());
    absl::Status taken;
    const arrow::Status opened = Caught([&]() -> arrow::Status {
      parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Open(std::make_shared<ArrowFile>(made->file_)));
      made->metadata_ = builder.raw_reader()->metadata();
      taken = made->TakeMetadata();
      if (!taken.ok()) return arrow::Status::OK();
      // Whether the library knows what the schema holds.
      return builder.Build().status();
    });
    if (!opened.ok()) return ErrorOf(opened, absl::StrCat(made->name_, ": not a valid Parquet file"));
    if (!taken.ok()) return Annotate(taken, made->name_);
    return made;
  }

  int64_t size() const override { return begins_.back(); }
  const std::vector<std::string>& columns() const override { return columns_; }
  std::string Place(int64_t index) const override { return absl::StrCat(name_, ": record ", index + 1); }
  text::ContentHash content() const override { return content_; }

  // Goes to each row group once, whatever the order.
  std::vector<absl::StatusOr<Record>> Read(std::span<const int64_t> indexes,
                                           std::span<const std::string> wanted) const override {
    std::vector<std::pair<int64_t, size_t>> order;  // index, and its place in what was asked for
    for (const int64_t index : indexes) {
      TDOCK_CHECK(index >= 0 && index < size(), "an index lies within the file");
      order.emplace_back(index, order.size());
    }
    std::sort(order.begin(), order.end());
    std::vector<absl::StatusOr<Record>> records(indexes.size());
    int number = -1;
    absl::StatusOr<std::shared_ptr<const Group>> group;
    for (const auto& [index, place] : order) {
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
      const auto its_number = static_cast<int>(after - begins_.begin()) - 1;
      if (its_number != number) group = Decoded(its_number, wanted);
      number = its_number;
      absl::StatusOr<Record> record = group.ok() ? ReadOne(**group, index - begins_[static_cast<size_t>(number)])
                                                 : absl::StatusOr<Record>(group.status());
      records[place] = record.ok() ? std::move(record) : Annotate(record.status(), Place(index));
    }
    return records;
  }

 private:
  using Key = std::pair<int, std::vector<std::string>>;  // the number of a row group, and what is wanted of it
  struct Group {
    int number = 0;
    std::vector<std::string> wanted;
    std::shared_ptr<BoundedPool> pool;                          // of the columns
    std::vector<std::shared_ptr<arrow::ChunkedArray>> columns;  // in the order of `wanted`; null: there is none
    int64_t bytes = 0;
  };
  using Kept = std::list<std::shared_ptr<const Group>>;
  struct Reader {
    std::shared_ptr<BoundedPool> pool;
    std::unique_ptr<parquet::arrow::FileReader> file;
  };

  ParquetFile(std::unique_ptr<ReadableFile> file, absl::string_view name, const RecordLimits& limits)
      : name_(EscapeUnprintable(name)), limits_(limits), file_(std::move(file)) {}

  absl::Status Hash() {
    text::ContentHasher hasher;
    std::string piece;
    for (uint64_t at = 0; at < file_->size(); at += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceBytes, file_->size() - at));
      TDOCK_RETURN_IF_ERROR(file_->ReadAt(at, piece));
      hasher.Add(piece);
    }
    content_ = hasher.Value();
    return absl::OkStatus();
  }

  absl::Status TakeMetadata() {
    const parquet::schema::GroupNode& root = *metadata_->schema()->group_node();
    if (root.field_count() > limits_.max_columns) {
      return absl::InvalidArgumentError(
          absl::StrCat("it has ", root.field_count(), " columns; at most ", limits_.max_columns, " are read"));
    }
    if (const std::string twice = NameTwice(root); !twice.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("it has the column '", EscapeForMessage(twice), "' twice"));
    }
    for (int i = 0; i < root.field_count(); ++i) columns_.push_back(root.field(i)->name());
    for (int leaf = 0; leaf < metadata_->num_columns(); ++leaf) {
      leaves_of_[metadata_->schema()->GetColumnRoot(leaf)->name()].push_back(leaf);
    }
    const int64_t most = MostOf(static_cast<int64_t>(file_->size()));
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      const int64_t rows = metadata_->RowGroup(group)->num_rows();
      if (rows < 0) {
        return absl::InvalidArgumentError("not a valid Parquet file: a row group has a negative number of rows");
      }
      if (rows > most - begins_.back()) {
        return absl::InvalidArgumentError(absl::StrCat("up to row group ", group, " it has more than ", most,
                                                       " records, the maximum in a file of ", file_->size(), " bytes"));
      }
      begins_.push_back(begins_.back() + rows);
    }
    return absl::OkStatus();
  }

  // Maximum number of bytes made of so many bytes of the file.
  int64_t MostOf(int64_t bytes) const {
    const int64_t rest = std::numeric_limits<int64_t>::max() - limits_.spare_bytes;
    if (limits_.max_expansion > 0 && bytes > rest / limits_.max_expansion) return rest;
    return bytes * limits_.max_expansion + limits_.spare_bytes;
  }

  // The bytes in the file of what is wanted of a row group, as far as its metadata can be true.
  int64_t BytesInFile(const Key& key) const {
    const auto whole = static_cast<int64_t>(file_->size());
    const std::unique_ptr<parquet::RowGroupMetaData> group = metadata_->RowGroup(key.first);
    int64_t bytes = 0;
    for (const std::string& name : key.second) {
      const auto leaves = leaves_of_.find(name);
      if (leaves == leaves_of_.end()) continue;
      for (const int leaf : leaves->second) {
        const int64_t more = group->ColumnChunk(leaf)->total_compressed_size();
        bytes = std::min(whole, bytes + std::clamp<int64_t>(more, 0, whole));
      }
    }
    return bytes;
  }

  absl::StatusOr<Record> ReadOne(const Group& group, int64_t row) const {
    CellReader reader(limits_);
    Record record(group.wanted.size());
    for (size_t i = 0; i < group.wanted.size(); ++i) {
      if (group.columns[i] == nullptr) continue;
      int64_t left = row;
      const std::shared_ptr<arrow::Array>* chunk = nullptr;
      for (const std::shared_ptr<arrow::Array>& next : group.columns[i]->chunks()) {
        chunk = &next;
        if (left < next->length()) break;
        left -= next->length();
      }
      if (chunk == nullptr || left >= (*chunk)->length()) {
        return absl::InvalidArgumentError("its row group has fewer rows than its metadata says");
      }
      absl::StatusOr<Value> cell = reader.CellOf(**chunk, left, 1);
      if (!cell.ok()) return Annotate(cell.status(), absl::StrCat("column '", EscapeForMessage(group.wanted[i]), "'"));
      record[i] = *std::move(cell);
    }
    return record;
  }

  // A thread that wants what another one is decoding waits for it; different row groups are decoded side by side.
  absl::StatusOr<std::shared_ptr<const Group>> Decoded(int number, std::span<const std::string> wanted) const
      TDOCK_EXCLUDES(mu_) {
    auto group = std::make_shared<Group>();
    group->number = number;
    group->wanted.assign(wanted.begin(), wanted.end());
    const Key key(number, group->wanted);
    Reader reader;
    {
      MutexLock lock(mu_);
      while (decoding_.contains(key)) changed_.Wait(mu_);
      if (const auto kept = kept_at_.find(key); kept != kept_at_.end()) {
        kept_.splice(kept_.begin(), kept_, kept->second);
        return kept_.front();
      }
      if (const auto bad = bad_.find(key); bad != bad_.end()) return bad->second;
      decoding_.insert(key);
      if (!idle_.empty()) {
        reader = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    std::string column;  // that is being decoded
    const arrow::Status decoded = Caught([&] { return Decode(*group, reader, column); });
    Kept dropped;  // freed without the lock
    MutexLock lock(mu_);
    decoding_.erase(key);
    changed_.NotifyAll();
    const bool refused = reader.pool != nullptr && reader.pool->refused();
    if (reader.file != nullptr) idle_.push_back(std::move(reader));
    if (!decoded.ok()) {
      const std::string of = column.empty() ? "" : absl::StrCat(", column '", EscapeForMessage(column), "'");
      const std::string where = absl::StrCat("row group ", number, of);
      const absl::Status error =
          refused ? TooLarge(where, key) : ErrorOf(decoded, absl::StrCat(where, " cannot be read"));
      if (absl::IsInvalidArgument(error) && bad_.size() < kMaxBadGroups) bad_.emplace(key, error);
      return error;
    }
    kept_bytes_ += group->bytes;
    kept_.push_front(group);
    kept_at_[key] = kept_.begin();
    while (kept_bytes_ > kKeptBytes && kept_.size() > 1) {
      kept_bytes_ -= kept_.back()->bytes;
      kept_at_.erase(Key(kept_.back()->number, kept_.back()->wanted));
      dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
    }
    return group;
  }

  absl::Status TooLarge(absl::string_view where, const Key& key) const {
    const int64_t bytes = BytesInFile(key);
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": what is read of it has ", bytes, " bytes in the file and would take more than ", MostOf(bytes),
        " in memory, the maximum for that; if it is not damaged, write the file with smaller ", "row groups"));
  }

  // Makes a reader where there is none. The columns one by one, so that one that fails has a name.
  arrow::Status Decode(Group& group, Reader& reader, std::string& column) const {
    if (reader.file == nullptr) {
      reader.pool = std::make_shared<BoundedPool>();
      reader.pool->Allow(limits_.spare_bytes);
      parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(
          builder.Open(std::make_shared<ArrowFile>(file_), parquet::ReaderProperties(reader.pool.get()), metadata_));
      builder.memory_pool(reader.pool.get());
      ARROW_ASSIGN_OR_RAISE(reader.file, builder.Build());
    }
    group.pool = reader.pool;
    reader.pool->Allow(MostOf(BytesInFile({group.number, group.wanted})));
    for (const std::string& name : group.wanted) {
      column = name;
      group.columns.push_back(nullptr);
      const auto leaves = leaves_of_.find(name);
      if (leaves == leaves_of_.end()) continue;
      ARROW_ASSIGN_OR_RAISE(const auto table, reader.file->ReadRowGroup(group.number, leaves->second));
      ARROW_RETURN_NOT_OK(table->ValidateFull());
      group.columns.back() = table->GetColumnByName(name);
      group.bytes += arrow::util::TotalBufferSize(*table);
    }
    return arrow::Status::OK();
  }

  const std::string name_;  // for messages
  const RecordLimits limits_;
  const std::shared_ptr<ReadableFile> file_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<std::string> columns_;
  absl::flat_hash_map<std::string, std::vector<int>> leaves_of_;  // by the column that they are part of
  std::vector<int64_t> begins_ = {0};
  text::ContentHash content_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  mutable std::set<Key> decoding_ TDOCK_GUARDED_BY(mu_);
  mutable std::map<Key, absl::Status> bad_ TDOCK_GUARDED_BY(mu_);  // of row groups that are damaged or too large
  mutable std::vector<Reader> idle_ TDOCK_GUARDED_BY(mu_);         // each is used by one thread at a time
  mutable Kept kept_ TDOCK_GUARDED_BY(mu_);                        // the latest first
  mutable std::map<Key, Kept::iterator> kept_at_ TDOCK_GUARDED_BY(mu_);
  mutable int64_t kept_bytes_ TDOCK_GUARDED_BY(mu_) = 0;
};

}  // namespace
}  // namespace tdock::data

extern "C" void tdock_open_parquet(std::unique_ptr<tdock::ReadableFile> file, const std::string& name,
                                   const tdock::data::RecordLimits& limits,
                                   absl::StatusOr<std::unique_ptr<tdock::data::RecordFile>>* opened) {
  *opened = tdock::data::ParquetFile::Open(std::move(file), name, limits);
}
