#include "tdock/meta_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/count_limits.h"

namespace tdock {
namespace {

// The first row in which columns of one type and one number of rows differ; their number of rows if there is none.
int64_t FirstDifference(const Column& a, const Column& b) {
  if (a.payload_bytes() == 0 && b.payload_bytes() == 0) return a.rows();  // however many there are
  for (int64_t row = 0; row < a.rows(); ++row) {
    const auto x = a.RowBytes(row), y = b.RowBytes(row);
    if (x.size() != y.size() || (!x.empty() && std::memcmp(x.data(), y.data(), x.size()) != 0)) return row;
  }
  return a.rows();
}

absl::Status CheckEqual(absl::string_view name, const Column& a, const Column& b) {
  std::string difference;
  if (a.type() != b.type()) {
    difference = absl::StrCat("holds ", ToString(a.type()), " in one and ", ToString(b.type()), " in the other");
  } else if (a.rows() != b.rows()) {
    difference = absl::StrCat("has ", a.rows(), " rows in one and ", b.rows(), " in the other");
  } else if (const int64_t row = FirstDifference(a, b); row < a.rows()) {
    difference = absl::StrCat("differs in row ", row);
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(name), "' is in both batches and ",
                                                 difference, "; rename or pop one of them"));
}

absl::Status CheckPositive(absl::string_view what, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, "; it must be positive"));
}

// Whether the rows, in turn until there are `total`, are not too many bytes.
absl::Status CheckRepeatedBytes(const Batch& batch, int64_t total) {
  for (const auto& [name, column] : batch.columns()) {
    const absl::Status status = tdock::CheckRepeatedBytes(column, total);
    if (!status.ok()) return Annotate(status, absl::StrCat("column '", EscapeForMessage(name), "'"));
  }
  return absl::OkStatus();
}

std::vector<int64_t> Numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return numbers;
}

}  // namespace

absl::StatusOr<MetaBatch> MetaBatch::Select(const std::vector<std::string>& names) const {
  TDOCK_ASSIGN_OR_RETURN(Batch columns, columns_.Select(names));
  return MetaBatch(std::move(columns), meta_);
}

absl::StatusOr<MetaBatch::Popped> MetaBatch::Pop(const std::vector<std::string>& names) const {
  TDOCK_ASSIGN_OR_RETURN(MetaBatch taken, Select(names));
  Batch rest;
  for (const auto& [name, column] : columns_.columns()) {
    if (taken.columns_.Find(name) == nullptr) TDOCK_RETURN_IF_ERROR(rest.Add(name, column));
  }
  return Popped{std::move(taken), MetaBatch(std::move(rest), meta_)};
}

absl::StatusOr<MetaBatch> MetaBatch::Rename(const std::vector<std::pair<std::string, std::string>>& names) const {
  absl::flat_hash_map<absl::string_view, absl::string_view> new_names;
  for (const auto& [from, to] : names) {
    if (absl::StatusOr<Column> column = columns_.Get(from); !column.ok()) return column.status();
    if (!new_names.try_emplace(from, to).second) {
      return absl::InvalidArgumentError(absl::StrCat("column '", EscapeForMessage(from), "' is renamed twice"));
    }
  }
  Batch renamed;
  for (const auto& [name, column] : columns_.columns()) {
    const auto entry = new_names.find(name);
    TDOCK_RETURN_IF_ERROR(renamed.Add(entry == new_names.end() ? absl::string_view(name) : entry->second, column));
  }
  return MetaBatch(std::move(renamed), meta_);
}

absl::StatusOr<MetaBatch> MetaBatch::Slice(int64_t begin, int64_t count) const {
  TDOCK_ASSIGN_OR_RETURN(Batch rows, columns_.Slice(begin, count));
  return MetaBatch(std::move(rows), meta_);
}

absl::StatusOr<MetaBatch> MetaBatch::SelectRows(const std::vector<int64_t>& rows) const {
  TDOCK_ASSIGN_OR_RETURN(Batch chosen, columns_.SelectRows(rows));
  return MetaBatch(std::move(chosen), meta_);
}

absl::StatusOr<MetaBatch> MetaBatch::SelectWhere(const Column& mask) const {
  if (mask.type() != ColumnType::Dense(DType::kBool)) {
    return absl::InvalidArgumentError(absl::StrCat("a mask holds bool[], not ", ToString(mask.type())));
  }
  if (mask.rows() != rows()) {
    return absl::InvalidArgumentError(absl::StrCat("the mask has ", mask.rows(), " rows, the batch ", rows()));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::span<const bool> truths, mask.Values<bool>());
  std::vector<int64_t> chosen;
  for (size_t row = 0; row < truths.size(); ++row) {
    if (truths[row]) chosen.push_back(static_cast<int64_t>(row));
  }
  return SelectRows(chosen);
}

absl::StatusOr<MetaBatch> MetaBatch::Reorder(const std::vector<int64_t>& permutation) const {
  if (static_cast<int64_t>(permutation.size()) != rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a permutation of ", permutation.size(), " rows does not fit a batch of ", rows()));
  }
  std::vector<bool> seen(permutation.size());
  for (int64_t row : permutation) {
    if (row < 0 || row >= rows()) return absl::OutOfRangeError(absl::StrCat("row ", row, " of ", rows()));
    if (seen[static_cast<size_t>(row)]) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " occurs twice; a permutation has every row once"));
    }
    seen[static_cast<size_t>(row)] = true;
  }
  return SelectRows(permutation);
}

absl::StatusOr<MetaBatch> MetaBatch::Repeat(int64_t times, RepeatOrder order) const {
  if (times < 0 || (rows() > 0 && times > kMaxRows / rows())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot repeat ", rows(), " rows ", times, " times; from 0 to ", kMaxRows, " rows can be made"));
  }
  TDOCK_RETURN_IF_ERROR(CheckRepeatedBytes(columns_, rows() * times));
  std::vector<int64_t> chosen(static_cast<size_t>(rows() * times));
  for (size_t i = 0; i < chosen.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    chosen[i] = order == RepeatOrder::kInterleaved ? at / times : at % rows();
  }
  return SelectRows(chosen);
}

absl::StatusOr<MetaBatch> MetaBatch::Union(const MetaBatch& other) const {
  TDOCK_ASSIGN_OR_RETURN(Meta meta, UniteMeta(meta_, other.meta_));
  Batch columns = columns_;
  for (const auto& [name, column] : other.columns_.columns()) {
    if (const Column* mine = columns_.Find(name); mine != nullptr) {
      TDOCK_RETURN_IF_ERROR(CheckEqual(name, *mine, column));
    } else {
      TDOCK_RETURN_IF_ERROR(columns.Add(name, column));
    }
  }
  return MetaBatch(std::move(columns), std::move(meta));
}

absl::StatusOr<MetaBatch> MetaBatch::Concat(const std::vector<MetaBatch>& batches,
                                            const std::vector<std::string>& metrics) {
  std::vector<Batch> columns;
  std::vector<const Meta*> metas;
  for (const MetaBatch& batch : batches) {
    columns.push_back(batch.columns_);
    metas.push_back(&batch.meta_);
  }
  TDOCK_ASSIGN_OR_RETURN(Batch joined, Batch::Concat(columns));
  TDOCK_ASSIGN_OR_RETURN(Meta meta, ConcatMeta(metas, metrics));
  return MetaBatch(std::move(joined), std::move(meta));
}

absl::StatusOr<std::vector<MetaBatch>> MetaBatch::Chunk(int64_t count) const {
  TDOCK_RETURN_IF_ERROR(CheckPositive("the number of chunks", count));
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of chunks", count, kMaxParts));
  if (rows() % count != 0) {
    return absl::InvalidArgumentError(absl::StrCat(rows(), " rows cannot be divided into ", count,
                                                   " equal chunks; pad them to a multiple of ", count,
                                                   ", or split them into parts of ", rows() / count + 1));
  }
  const int64_t size = rows() / count;
  std::vector<MetaBatch> chunks;
  for (int64_t i = 0; i < count; ++i) {
    TDOCK_ASSIGN_OR_RETURN(MetaBatch chunk, Slice(i * size, size));
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

absl::StatusOr<std::vector<MetaBatch>> MetaBatch::Split(int64_t size) const {
  TDOCK_RETURN_IF_ERROR(CheckPositive("the size to split into", size));
  const int64_t needed = rows() / size + (rows() % size == 0 ? 0 : 1);
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of parts", needed, kMaxParts));
  std::vector<MetaBatch> parts;
  int64_t begin = 0;
  do {
    const int64_t count = std::min(size, rows() - begin);
    TDOCK_ASSIGN_OR_RETURN(MetaBatch part, Slice(begin, count));
    parts.push_back(std::move(part));
    begin += count;
  } while (begin < rows());
  return parts;
}

bool operator==(const MetaBatch& a, const MetaBatch& b) {
  const auto same = [](const NamedColumn& x, const NamedColumn& y) {
    return x.name == y.name && CheckEqual(x.name, x.column, y.column).ok();
  };
  const auto x = a.columns().columns(), y = b.columns().columns();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), same) && a.meta() == b.meta();
}

absl::StatusOr<PaddedBatch> PaddedBatch::ToDivisor(const MetaBatch& batch, int64_t divisor) {
  TDOCK_RETURN_IF_ERROR(CheckPositive("the divisor", divisor));
  const int64_t real = batch.rows();
  const int64_t missing = real % divisor == 0 ? 0 : divisor - real % divisor;
  if (real > kMaxRows || missing > kMaxRows - real) {
    return absl::InvalidArgumentError(absl::StrCat("cannot pad ", real, " rows to a multiple of ", divisor,
                                                   "; a padded batch has at most ", kMaxRows, " rows"));
  }
  if (missing == 0) return PaddedBatch(batch, real);
  TDOCK_RETURN_IF_ERROR(CheckRepeatedBytes(batch.columns(), real + missing));
  std::vector<int64_t> rows = Numbers(real + missing);
  for (int64_t& row : rows) row %= real;
  TDOCK_ASSIGN_OR_RETURN(MetaBatch padded, batch.SelectRows(rows));
  return PaddedBatch(std::move(padded), real);
}

Column PaddedBatch::Weights() const {
  std::vector<float> weights(static_cast<size_t>(batch_.rows()));
  std::fill_n(weights.begin(), real_rows_, 1.0f);
  return *Column::FromValues(weights);
}

absl::StatusOr<std::vector<PaddedBatch>> PaddedBatch::Chunk(int64_t count) const {
  TDOCK_ASSIGN_OR_RETURN(std::vector<MetaBatch> parts, batch_.Chunk(count));
  std::vector<PaddedBatch> chunks;
  int64_t left = real_rows_;
  for (MetaBatch& part : parts) {
    const int64_t real = std::min(left, part.rows());
    left -= real;
    chunks.push_back(PaddedBatch(std::move(part), real));
  }
  return chunks;
}

MetaBatch PaddedBatch::Unpad() const { return *batch_.Slice(0, real_rows_); }

absl::StatusOr<MetaBatch> PaddedBatch::Unpad(const MetaBatch& result) const {
  if (result.rows() != batch_.rows()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot unpad ", result.rows(), " rows: the padded batch has ",
                                                   batch_.rows(), ", of which ", real_rows_, " are real"));
  }
  return result.Slice(0, real_rows_);
}

absl::StatusOr<MiniBatches> MiniBatches::Of(MetaBatch batch, const MiniBatchOptions& options) {
  TDOCK_RETURN_IF_ERROR(CheckPositive("the size of a mini-batch", options.size));
  const int64_t rows = batch.rows();
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of rows", rows, kMaxRows));
  if (rows % options.size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(rows, " rows cannot be divided into mini-batches of ", options.size,
                                                   "; ", rows - rows % options.size, " or ",
                                                   rows - rows % options.size + options.size, " can"));
  }
  const int64_t per_epoch = rows / options.size;
  if (options.epochs < 0 || (per_epoch > 0 && options.epochs > INT64_MAX / per_epoch)) {
    return absl::InvalidArgumentError(absl::StrCat(options.epochs, " epochs; from 0 to ",
                                                   INT64_MAX / std::max(per_epoch, int64_t{1}), " are possible"));
  }
  return MiniBatches(std::move(batch), options);
}

MiniBatches::MiniBatches(MetaBatch batch, const MiniBatchOptions& options)
    : batch_(std::move(batch)), options_(options), per_epoch_(batch_.rows() / options.size) {}

absl::StatusOr<MetaBatch> MiniBatches::Get(int64_t index) const {
  if (index < 0 || index >= count()) return absl::OutOfRangeError(absl::StrCat("mini-batch ", index, " of ", count()));
  // Shuffling numbers is much less work than copying the rows that they stand for, so nothing is kept between calls.
  std::vector<int64_t> order = Numbers(batch_.rows());
  if (options_.shuffle) {
    Rng(DeriveSeed(options_.seed, static_cast<uint64_t>(index / per_epoch_))).Shuffle(std::span(order));
  }
  const auto first = order.begin() + index % per_epoch_ * options_.size;
  return batch_.SelectRows(std::vector<int64_t>(first, first + options_.size));
}

}  // namespace tdock
