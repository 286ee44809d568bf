#include "tdock/padding.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/count_limits.h"
#include "core/tensor/row_items.h"

namespace tdock {
namespace {

constexpr absl::string_view kOneValueColumns[] = {"prompt_length", "response_length", "age"};

template <class T>
absl::Status CheckFits(int64_t value) {
  if (std::in_range<T>(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the pad id ", value, " is no ", Name(kDTypeOf<T>)));
}

// Whether `value` is one of an integer dtype; nothing to say of others.
absl::Status CheckPadId(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kU8:
      return CheckFits<uint8_t>(value);
    case DType::kI8:
      return CheckFits<int8_t>(value);
    case DType::kI16:
      return CheckFits<int16_t>(value);
    case DType::kI32:
      return CheckFits<int32_t>(value);
    default:
      return absl::OkStatus();
  }
}

bool IsInteger(DType dtype) { return dtype >= DType::kU8 && dtype <= DType::kI64; }

// The bytes of an integer of any width, the lowest first, are those of an int64.
std::array<std::byte, sizeof(int64_t)> BytesOf(int64_t value) {
  std::array<std::byte, sizeof(int64_t)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Fills with the pad id if the elements are integers, otherwise with zeros, which are 0.0 and false too.
void Fill(std::span<std::byte> to, DType dtype, int64_t pad_id) {
  if (to.empty()) return;
  if (!IsInteger(dtype) || pad_id == 0) {
    std::memset(to.data(), 0, to.size());
    return;
  }
  const auto id = BytesOf(pad_id);
  const size_t size = SizeOf(dtype);
  for (size_t at = 0; at < to.size(); at += size) std::memcpy(to.data() + at, id.data(), size);
}

absl::Status TooWide(const Column& rows, const PadOptions& options) {
  return absl::InvalidArgumentError(absl::StrCat(rows.rows(), " rows padded to a multiple of ", options.multiple,
                                                 " items exceed the most bytes of a column, ", kMaxColumnBytes));
}

// The longest row, rounded up.
absl::StatusOr<int64_t> Width(const Column& rows, const PadOptions& options) {
  const int64_t multiple = options.multiple;
  if (multiple <= 0)
    return absl::InvalidArgumentError(absl::StrCat("the multiple is ", multiple, "; it must be positive"));
  int64_t longest = 0;
  for (int64_t row = 0; row < rows.rows(); ++row) longest = std::max(longest, rows.Length(row));
  const int64_t rest = longest % multiple;
  // An item has a byte or more.
  if (rest != 0 && (longest > kMaxColumnBytes || multiple - rest > kMaxColumnBytes - longest)) {
    return TooWide(rows, options);
  }
  return rest == 0 ? longest : longest + (multiple - rest);
}

// Dense [1], of rows that have one value each.
absl::StatusOr<Column> OneValueEach(const Column& rows) {
  TDOCK_ASSIGN_OR_RETURN(const RowItems items, ItemsOf(rows));
  if (!items.shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(rows.type()), ", not one value in each row"));
  }
  for (int64_t row = 0; row < rows.rows(); ++row) {
    if (rows.Length(row) != 1) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " has ", rows.Length(row), " values instead of one"));
    }
  }
  const auto payload = rows.PayloadBytes();
  return Column::MakeDense(rows.type().dtype, {1}, rows.rows(),
                           Buffer::Wrap(payload.data(), payload.size(), std::make_shared<const Column>(rows)));
}

absl::StatusOr<Column> PadExperienceColumn(absl::string_view name, const Column& column, PadOptions options) {
  const ColumnType& type = column.type();
  const auto end = std::end(kOneValueColumns);
  if (std::find(std::begin(kOneValueColumns), end, name) != end) return OneValueEach(column);
  const bool scalar = type.kind == ColumnKind::kDense && type.row_shape.empty();
  if (scalar || type.kind == ColumnKind::kBytes) return column;
  if (absl::EndsWith(name, "mask")) options.pad_id = 0;
  return PadRows(column, options);
}

}  // namespace

absl::StatusOr<Column> Lengths(const Column& rows) {
  TDOCK_RETURN_IF_ERROR(ItemsOf(rows).status());
  std::vector<int64_t> lengths(static_cast<size_t>(rows.rows()));
  for (size_t row = 0; row < lengths.size(); ++row) lengths[row] = rows.Length(static_cast<int64_t>(row));
  return Column::FromValues(lengths);
}

absl::StatusOr<Column> PadRows(const Column& rows, const PadOptions& options) {
  TDOCK_ASSIGN_OR_RETURN(const RowItems items, ItemsOf(rows));
  TDOCK_RETURN_IF_ERROR(CheckPadId(rows.type().dtype, options.pad_id));
  TDOCK_ASSIGN_OR_RETURN(const int64_t width, Width(rows, options));
  std::vector<int64_t> sizes(items.shape.begin(), items.shape.end());
  sizes.insert(sizes.begin(), width);
  const Shape shape{std::span<const int64_t>(sizes)};
  TDOCK_ASSIGN_OR_RETURN(const int64_t row_bytes, ItemBytes(ColumnType::Dense(rows.type().dtype, shape)));
  if (row_bytes > 0 && rows.rows() > kMaxColumnBytes / row_bytes) return TooWide(rows, options);
  Buffer values = Buffer::Allocate(static_cast<size_t>(rows.rows() * row_bytes));
  std::span<std::byte> to(values.mutable_data(), values.size());
  for (int64_t row = 0; row < rows.rows(); ++row, to = to.subspan(static_cast<size_t>(row_bytes))) {
    const auto from = rows.RowBytes(row);
    const size_t padding = static_cast<size_t>(row_bytes) - from.size();
    const bool left = options.side == PadSide::kLeft;
    if (!from.empty()) std::memcpy(to.data() + (left ? padding : 0), from.data(), from.size());
    Fill(to.subspan(left ? 0 : from.size(), padding), rows.type().dtype, options.pad_id);
  }
  return Column::MakeDense(rows.type().dtype, shape, rows.rows(), std::move(values));
}

absl::StatusOr<Column> UnpadRows(const Column& rows, const Column& lengths, PadSide side) {
  TDOCK_ASSIGN_OR_RETURN(const RowItems items, ItemsOf(rows));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> kept, ReadLengths(lengths));
  if (static_cast<int64_t>(kept.size()) != rows.rows()) {
    return absl::InvalidArgumentError(absl::StrCat(kept.size(), " lengths for ", rows.rows(), " rows"));
  }
  int64_t total = 0;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int64_t length = kept[static_cast<size_t>(row)];
    if (length > rows.Length(row)) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, " has ", rows.Length(row), " items, its length is said to be ", length));
    }
    total += length;
  }
  Buffer values = Buffer::Allocate(static_cast<size_t>(total * items.bytes));
  std::byte* to = values.mutable_data();
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const size_t bytes = static_cast<size_t>(kept[static_cast<size_t>(row)] * items.bytes);
    const auto whole = rows.RowBytes(row);
    const auto part = side == PadSide::kRight ? whole.first(bytes) : whole.last(bytes);
    if (!part.empty()) std::memcpy(to, part.data(), part.size());
    to += bytes;
  }
  return MakeRaggedOf(rows.type().dtype, items.shape, std::move(values), kept);
}

absl::StatusOr<Column> CutAtPad(const Column& rows, int64_t eos_id, int64_t pad_id) {
  TDOCK_ASSIGN_OR_RETURN(const RowItems items, ItemsOf(rows));
  const DType dtype = rows.type().dtype;
  if (!IsInteger(dtype) || !items.shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", ToString(rows.type()), ", not rows of integers"));
  }
  TDOCK_RETURN_IF_ERROR(CheckPadId(dtype, pad_id));
  const auto id = BytesOf(pad_id);
  const size_t size = SizeOf(dtype);
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const auto bytes = rows.RowBytes(row);
    size_t at = 0;
    while (at < bytes.size() && std::memcmp(bytes.data() + at, id.data(), size) != 0) at += size;
    if (at < bytes.size() && pad_id == eos_id) at += size;
    lengths.push_back(static_cast<int64_t>(at / size));
  }
  TDOCK_ASSIGN_OR_RETURN(const Column kept, Column::FromValues(lengths));
  return UnpadRows(rows, kept);
}

absl::StatusOr<PaddedColumns> PadColumns(const Batch& columns) {
  PaddedColumns padded;
  std::vector<Column> lengths;
  for (const auto& [name, column] : columns.columns()) {
    TDOCK_RETURN_IF_ERROR(padded.columns.Add(name, PadRows(column)));
    TDOCK_ASSIGN_OR_RETURN(Column of_column, Lengths(column));
    lengths.push_back(std::move(of_column));
  }
  if (!lengths.empty()) {
    TDOCK_ASSIGN_OR_RETURN(padded.original_length, Column::Concat(lengths));
  }
  return padded;
}

absl::StatusOr<Batch> UnpadColumns(const PaddedColumns& padded) {
  if (!padded.original_length) return padded.columns;
  const int64_t rows = padded.columns.rows(), count = static_cast<int64_t>(padded.columns.columns().size());
  TDOCK_RETURN_IF_ERROR(CheckAtMost("the number of rows", rows, kMaxRows));
  if (padded.original_length->rows() != rows * count) {
    return absl::InvalidArgumentError(absl::StrCat("original_length has ", padded.original_length->rows(), " lengths; ",
                                                   count, " columns of ", rows, " rows have ", rows * count));
  }
  Batch columns;
  int64_t begin = 0;
  for (const auto& [name, column] : padded.columns.columns()) {
    TDOCK_ASSIGN_OR_RETURN(const Column lengths, padded.original_length->Slice(begin, rows));
    TDOCK_RETURN_IF_ERROR(columns.Add(name, UnpadRows(column, lengths)));
    begin += rows;
  }
  return columns;
}

absl::StatusOr<Batch> PadExperience(const Batch& columns, const PadOptions& options) {
  Batch padded;
  for (const auto& [name, column] : columns.columns()) {
    TDOCK_RETURN_IF_ERROR(padded.Add(name, PadExperienceColumn(name, column, options)));
  }
  return padded;
}

absl::StatusOr<Batch> RepeatPrompts(const Column& prompts, int64_t n) {
  if (n < 0 || (prompts.rows() > 0 && n > kMaxRows / prompts.rows())) {
    return absl::InvalidArgumentError(absl::StrCat("cannot repeat ", prompts.rows(), " prompts ", n,
                                                   " times; from 0 to ", kMaxRows, " rows can be made"));
  }
  TDOCK_RETURN_IF_ERROR(CheckRepeatedBytes(prompts, prompts.rows() * n));
  std::vector<int64_t> rows(static_cast<size_t>(prompts.rows() * n));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i) / n;
  TDOCK_ASSIGN_OR_RETURN(Column repeated, prompts.Select(rows));
  TDOCK_ASSIGN_OR_RETURN(const Column lengths, Lengths(repeated));
  Batch batch;
  TDOCK_RETURN_IF_ERROR(batch.Add("prompts", std::move(repeated)));
  TDOCK_RETURN_IF_ERROR(batch.Add("prompt_length", OneValueEach(lengths)));
  return batch;
}

}  // namespace tdock
