#include "core/tensor/frame_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/checksum.h"

namespace tdock {
namespace {

// Sums of sizes below it do not overflow.
constexpr uint64_t kMostFrameBytes = uint64_t{1} << 62;

// Reads numbers and names from the header. Every error names the byte of the frame.
class Reader {
 public:
  Reader(std::span<const std::byte> header, const FrameLimits& limits) : header_(header), limits_(limits) {}

  size_t at() const { return at_; }
  size_t left() const { return header_.size() - at_; }

  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("damaged frame: byte ", at_, ": ", what));
  }
  absl::Status BeyondLimit(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("frame refused: byte ", at_, ": ", what));
  }

  absl::StatusOr<absl::string_view> Raw(uint64_t size) {
    if (size > left()) return Damaged(absl::StrCat("the header ends ", left(), " bytes later, ", size, " are needed"));
    const auto bytes = header_.subspan(at_, size);
    at_ += size;
    return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  template <class T>
  absl::StatusOr<T> Number() {
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view bytes, Raw(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  absl::StatusOr<std::string> Name() {
    TDOCK_ASSIGN_OR_RETURN(const uint32_t size, Number<uint32_t>());
    // Before the rest is looked at, so that no message holds more of it than a name may.
    if (size > limits_.max_name_bytes) {
      return BeyondLimit(absl::StrCat("a name of ", size, " bytes; the limit is ", limits_.max_name_bytes));
    }
    TDOCK_ASSIGN_OR_RETURN(const absl::string_view name, Raw(size));
    if (std::optional<std::string> fault = FindNameFault(name, limits_)) return Damaged(*fault);
    return std::string(name);
  }

  absl::StatusOr<Meta> Map(int depth) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t count, Number<uint64_t>());
    Meta map;
    for (uint64_t i = 0; i < count; ++i) {
      TDOCK_ASSIGN_OR_RETURN(std::string key, Name());
      if (!map.empty() && key <= map.rbegin()->first) {
        return Damaged(absl::StrCat("meta key '", EscapeForMessage(key), "' is not after its predecessor"));
      }
      TDOCK_ASSIGN_OR_RETURN(MetaValue value, Value(depth));
      map.emplace_hint(map.end(), std::move(key), std::move(value));
    }
    return map;
  }

 private:
  absl::StatusOr<MetaValue> Value(int depth) {
    TDOCK_ASSIGN_OR_RETURN(const MetaTag tag, Number<MetaTag>());
    if (tag >= MetaTag::kList && depth >= limits_.max_meta_depth) {
      return BeyondLimit(
          absl::StrCat("lists and maps of the meta more than ", limits_.max_meta_depth, " inside one another"));
    }
    if (tag == MetaTag::kMap) {
      TDOCK_ASSIGN_OR_RETURN(Meta map, Map(depth + 1));
      return MetaValue(std::move(map));
    }
    TDOCK_ASSIGN_OR_RETURN(const uint64_t bits, Number<uint64_t>());
    switch (tag) {
      case MetaTag::kBool:
        if (bits > 1) return Damaged(absl::StrCat("a bool with the value ", bits));
        return MetaValue(bits == 1);
      case MetaTag::kInt64:
        return MetaValue(static_cast<int64_t>(bits));
      case MetaTag::kDouble:
        return MetaValue(std::bit_cast<double>(bits));
      case MetaTag::kString: {
        TDOCK_ASSIGN_OR_RETURN(const absl::string_view text, Raw(bits));
        return MetaValue(std::string(text));
      }
      case MetaTag::kList: {
        MetaValue::List list;
        for (uint64_t i = 0; i < bits; ++i) {
          TDOCK_ASSIGN_OR_RETURN(MetaValue item, Value(depth + 1));
          list.push_back(std::move(item));
        }
        return MetaValue(std::move(list));
      }
      default:
        return Damaged(absl::StrCat("there is no type ", static_cast<int>(tag), " of meta"));
    }
  }

  std::span<const std::byte> header_;
  const FrameLimits& limits_;
  size_t at_ = 0;
};

absl::Status DamagedAt(uint64_t byte, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("damaged frame: byte ", byte, ": ", what));
}

absl::Status OfColumn(const FrameColumn& column, const absl::Status& status) {
  return Annotate(status, absl::StrCat("column '", EscapeForMessage(column.name), "'"));
}

// Reads the descriptions of columns, one after another: their blocks lie in the frame without gaps, each up to a
// multiple of 64 bytes.
class ColumnReader {
 public:
  ColumnReader(Reader& reader, FrameHeader& header)
      : reader_(reader), header_(header), at_(RoundUpToBlock(header.prelude.header_bytes)) {}

  absl::Status ReadNext() {
    FrameColumn column;
    TDOCK_ASSIGN_OR_RETURN(column.name, reader_.Name());
    if (!names_.insert(column.name).second)
      return reader_.Damaged(absl::StrCat("a second column '", EscapeForMessage(column.name), "'"));
    const absl::Status status = Describe(column);
    // What does not make a column is the fault of the frame.
    if (absl::IsInvalidArgument(status)) return OfColumn(column, reader_.Damaged(status.message()));
    if (!status.ok()) return OfColumn(column, status);
    column.described_until = reader_.at();
    header_.columns.push_back(std::move(column));
    return absl::OkStatus();
  }

  // Where the last block ends, with the zeros after it.
  uint64_t at() const { return at_; }

 private:
  absl::Status Describe(FrameColumn& column) {
    ColumnType& type = column.type;
    TDOCK_ASSIGN_OR_RETURN(type.kind, reader_.Number<ColumnKind>());
    TDOCK_ASSIGN_OR_RETURN(type.dtype, reader_.Number<DType>());
    TDOCK_ASSIGN_OR_RETURN(const uint16_t rank, reader_.Number<uint16_t>());
    if (rank > Shape::kMaxRank) return reader_.Damaged(absl::StrCat("a shape of ", rank, " dimensions"));
    std::array<int64_t, Shape::kMaxRank> sizes;
    for (size_t i = 0; i < rank; ++i) {
      TDOCK_ASSIGN_OR_RETURN(sizes[i], reader_.Number<int64_t>());
    }
    type.row_shape = Shape(std::span<const int64_t>(sizes.data(), rank));
    TDOCK_ASSIGN_OR_RETURN(column.item_bytes, ItemBytes(type));

    const uint64_t rows = header_.prelude.rows;
    if (type.kind == ColumnKind::kDense) {
      TDOCK_ASSIGN_OR_RETURN(const uint64_t bytes, DescribeBlock("values"));
      // Compares the sizes; there is nothing to look at.
      return Column::MakeDense(type.dtype, type.row_shape, static_cast<int64_t>(rows),
                               Buffer::Wrap(nullptr, bytes, nullptr))
          .status();
    }
    TDOCK_ASSIGN_OR_RETURN(const uint64_t offset_bytes, DescribeBlock("offsets"));
    if (offset_bytes % sizeof(int64_t) != 0 || offset_bytes / sizeof(int64_t) != rows + 1) {
      return reader_.Damaged(
          absl::StrCat(offset_bytes, " bytes of offsets; ", rows, " rows need ", rows + 1, " int64"));
    }
    TDOCK_ASSIGN_OR_RETURN(const uint64_t bytes, DescribeBlock("values"));
    const auto item = static_cast<uint64_t>(column.item_bytes);
    if (item == 0) return reader_.Damaged(absl::StrCat(ToString(type), " has items without elements"));
    if (bytes % item == 0) return absl::OkStatus();
    return reader_.Damaged(absl::StrCat(bytes, " bytes of values are not a whole number of items of ", item, " bytes"));
  }

  // Returns the bytes of the block.
  absl::StatusOr<uint64_t> DescribeBlock(absl::string_view what) {
    FrameBlock block{.column = header_.columns.size(), .what = what};
    TDOCK_ASSIGN_OR_RETURN(block.begin, reader_.Number<uint64_t>());
    if (block.begin != at_) {
      return reader_.Damaged(absl::StrCat(what, " at byte ", block.begin, "; they must be at ", at_));
    }
    const uint64_t left = header_.prelude.frame_bytes - at_;
    TDOCK_ASSIGN_OR_RETURN(block.bytes, reader_.Number<uint64_t>());
    if (block.bytes > left) {
      return reader_.Damaged(absl::StrCat(block.bytes, " bytes of ", what, "; the frame has ", left, " left"));
    }
    TDOCK_ASSIGN_OR_RETURN(block.checksum, reader_.Number<uint64_t>());
    if (!header_.prelude.checked() && block.checksum != 0) {
      return reader_.Damaged(absl::StrCat("a checksum of ", what, " in a frame whose blocks have none"));
    }
    if (RoundUpToBlock(block.bytes) > left) {
      return reader_.Damaged("the padding after the last block is missing");
    }
    at_ += RoundUpToBlock(block.bytes);
    header_.blocks.push_back(block);
    return block.bytes;
  }

  Reader& reader_;
  FrameHeader& header_;
  uint64_t at_;
  absl::flat_hash_set<std::string> names_;
};

absl::StatusOr<Column> MakeColumn(const FrameColumn& column, int64_t rows, Buffer offsets, Buffer values) {
  const ColumnType& type = column.type;
  if (type.dtype == DType::kBool) TDOCK_RETURN_IF_ERROR(CheckTruths(values.bytes()));
  if (type.kind == ColumnKind::kDense) return Column::MakeDense(type.dtype, type.row_shape, rows, std::move(values));
  const uint64_t value_bytes = values.size();
  TDOCK_ASSIGN_OR_RETURN(Column made,
                         type.kind == ColumnKind::kBytes
                             ? Column::MakeBytes(std::move(values), std::move(offsets), type.dtype)
                             : Column::MakeRagged(type.dtype, type.row_shape, std::move(values), std::move(offsets)));
  if (made.offsets().front() != 0 || static_cast<uint64_t>(made.offsets().back() * column.item_bytes) != value_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("offsets from ", made.offsets().front(), " to ",
                                                   made.offsets().back(), " for ", value_bytes, " bytes of values"));
  }
  return made;
}

}  // namespace

absl::Status CheckTruths(std::span<const std::byte> values) {
  const auto wrong = std::find_if(values.begin(), values.end(), [](std::byte value) { return value > std::byte{1}; });
  if (wrong == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("value ", wrong - values.begin(), " is a bool of ", std::to_integer<int>(*wrong)));
}

std::optional<std::string> FindNameFault(absl::string_view name, const FrameLimits& limits) {
  if (name.empty()) return "an empty name";
  if (name.size() > limits.max_name_bytes) {
    return absl::StrCat("a name of ", name.size(), " bytes, '", EscapeForMessage(name), "'; the limit is ",
                        limits.max_name_bytes);
  }
  for (absl::string_view rest = name; !rest.empty();) {
    const std::optional<Utf8Char> next = FirstUtf8Char(rest);
    if (!next || IsControl(next->code)) {
      return absl::StrCat("the name '", EscapeForMessage(name), "', which is not UTF-8 without control characters");
    }
    rest.remove_prefix(next->bytes);
  }
  return std::nullopt;
}

absl::Status CheckFrameStart(std::span<const std::byte> bytes) {
  const size_t compared = std::min(bytes.size(), kFrameMagic.size());
  if (compared == 0 || std::memcmp(bytes.data(), kFrameMagic.data(), compared) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError("not a frame: byte 0: it does not begin with a frame's magic bytes");
}

absl::Status WrongFrameSize(uint64_t said, uint64_t given) {
  return DamagedAt(kFramePreludeBytes, absl::StrCat("the frame should have ", said, " bytes and has ", given));
}

absl::Status FrameTooShort(uint64_t given) {
  return absl::DataLossError(
      absl::StrCat("damaged frame: it ends at byte ", given, ", within the first ", kFramePreludeBytes));
}

absl::StatusOr<FramePrelude> ReadFramePrelude(std::span<const std::byte> bytes, const FrameLimits& limits) {
  Reader reader(bytes, limits);
  TDOCK_RETURN_IF_ERROR(reader.Raw(kFrameMagic.size()).status());
  FramePrelude prelude;
  TDOCK_ASSIGN_OR_RETURN(prelude.version, reader.Number<uint32_t>());
  if (prelude.version == kUncheckedFrameVersion && !limits.allow_unchecked) {
    return reader.BeyondLimit("version 2 of the format, without checksums of blocks; only version 1 is accepted here");
  }
  if (prelude.version != kCheckedFrameVersion && prelude.version != kUncheckedFrameVersion) {
    return reader.BeyondLimit(absl::StrCat("version ", prelude.version, " of the format; this program reads ",
                                           kCheckedFrameVersion, " and ", kUncheckedFrameVersion));
  }
  TDOCK_ASSIGN_OR_RETURN(prelude.columns, reader.Number<uint32_t>());
  if (prelude.columns > limits.max_columns) {
    return reader.BeyondLimit(absl::StrCat(prelude.columns, " columns; the limit is ", limits.max_columns));
  }
  TDOCK_ASSIGN_OR_RETURN(prelude.rows, reader.Number<uint64_t>());
  if (prelude.rows > static_cast<uint64_t>(limits.max_rows)) {
    return reader.BeyondLimit(absl::StrCat(prelude.rows, " rows; the limit is ", limits.max_rows));
  }
  TDOCK_ASSIGN_OR_RETURN(prelude.header_bytes, reader.Number<uint64_t>());
  if (prelude.header_bytes > limits.max_header_bytes) {
    return reader.BeyondLimit(
        absl::StrCat("a header of ", prelude.header_bytes, " bytes; the limit is ", limits.max_header_bytes));
  }
  TDOCK_ASSIGN_OR_RETURN(prelude.frame_bytes, reader.Number<uint64_t>());
  const uint64_t most = std::min<uint64_t>(limits.max_frame_bytes, kMostFrameBytes);
  if (prelude.frame_bytes > most) {
    return reader.BeyondLimit(absl::StrCat("a frame of ", prelude.frame_bytes, " bytes; the limit is ", most));
  }
  if (prelude.header_bytes < kFramePreludeBytes + kFrameChecksumBytes || prelude.header_bytes > prelude.frame_bytes) {
    return reader.Damaged(
        absl::StrCat("a header of ", prelude.header_bytes, " bytes in a frame of ", prelude.frame_bytes));
  }
  return prelude;
}

absl::StatusOr<FrameHeader> ReadFrameHeader(std::span<const std::byte> bytes, const FramePrelude& prelude,
                                            const FrameLimits& limits) {
  const uint64_t checked = prelude.header_bytes - kFrameChecksumBytes;
  uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + checked, sizeof(checksum));
  if (Checksum(bytes.first(checked)) != checksum) {
    return absl::DataLossError(
        absl::StrCat("damaged frame: bytes 0 to ", checked, ": the header does not match its checksum"));
  }
  Reader reader(bytes.first(checked), limits);
  TDOCK_RETURN_IF_ERROR(reader.Raw(kFramePreludeBytes).status());
  FrameHeader header;
  header.prelude = prelude;
  if (RoundUpToBlock(prelude.header_bytes) > prelude.frame_bytes) {
    return reader.Damaged("the padding after the header is missing");
  }
  ColumnReader columns(reader, header);
  for (uint32_t i = 0; i < prelude.columns; ++i) TDOCK_RETURN_IF_ERROR(columns.ReadNext());
  if (prelude.columns == 0 && prelude.rows != 0) return reader.Damaged("rows without columns");
  TDOCK_ASSIGN_OR_RETURN(header.meta, reader.Map(0));
  if (reader.left() != 0) return reader.Damaged(absl::StrCat(reader.left(), " bytes after the meta"));
  if (columns.at() != prelude.frame_bytes) {
    return DamagedAt(columns.at(), absl::StrCat(prelude.frame_bytes - columns.at(), " bytes after the last column"));
  }
  return header;
}

absl::Status FrameHeader::CheckBlock(const FrameBlock& block, uint64_t checksum) const {
  if (checksum == block.checksum) return absl::OkStatus();
  return OfColumn(columns[block.column],
                  absl::DataLossError(absl::StrCat("damaged frame: bytes ", block.begin, " to ", block.end(), ": the ",
                                                   block.what, " do not match their checksums")));
}

absl::Status FrameHeader::CheckZeros(std::span<const std::byte> bytes, uint64_t at, const FrameBlock* before) const {
  const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte != std::byte{0}; });
  if (wrong == bytes.end()) return absl::OkStatus();
  const absl::Status status =
      DamagedAt(at + static_cast<uint64_t>(wrong - bytes.begin()), "not zero, although it belongs to no column");
  return before == nullptr ? status : OfColumn(columns[before->column], status);
}

absl::StatusOr<MetaBatch> FrameHeader::MakeBatch(std::vector<Buffer> bytes) && {
  Batch batch;
  auto next = bytes.begin();
  for (const FrameColumn& column : columns) {
    Buffer offsets;
    if (column.type.kind != ColumnKind::kDense) offsets = std::move(*next++);
    absl::StatusOr<Column> made =
        MakeColumn(column, static_cast<int64_t>(prelude.rows), std::move(offsets), std::move(*next++));
    if (!made.ok()) return OfColumn(column, DamagedAt(column.described_until, made.status().message()));
    TDOCK_RETURN_IF_ERROR(batch.Add(column.name, *std::move(made)));
  }
  return MetaBatch(std::move(batch), std::move(meta));
}

}  // namespace tdock
