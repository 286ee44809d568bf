#include "tdock/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status.h"
#include "base/utf8.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tdock {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are written as they are in memory");

// The first byte is no ASCII, and the line ends show whether somebody converted them, as those of PNG do.
constexpr absl::string_view kMagic("\x8aTDK\r\n\x1a\n", 8);
constexpr uint32_t kVersion = 1;
// Magic, version, number of columns, rows, bytes of the header, bytes of the frame.
constexpr size_t kPreludeBytes = 40;
constexpr size_t kChecksumBytes = 8;

enum class MetaTag : uint8_t { kBool = 0, kInt64 = 1, kDouble = 2, kString = 3, kList = 4, kMap = 5 };

constexpr uint64_t RoundUp(uint64_t bytes) {
  return (bytes + EncodedFrame::kAlignment - 1) / EncodedFrame::kAlignment * EncodedFrame::kAlignment;
}

uint64_t Checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// To read any other byte as a bool is undefined.
absl::Status CheckTruths(std::span<const std::byte> values) {
  const auto wrong = std::find_if(values.begin(), values.end(), [](std::byte value) { return value > std::byte{1}; });
  if (wrong == values.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("value ", wrong - values.begin(), " is a bool of ", std::to_integer<int>(*wrong)));
}

// Says what is wrong with the name of a column or a key; nothing if it is right.
std::optional<std::string> FindFault(absl::string_view name, const FrameLimits& limits) {
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

class Writer {
 public:
  explicit Writer(const FrameLimits& limits) : limits_(limits) {}

  template <class T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  absl::Status Name(absl::string_view what, absl::string_view name) {
    if (std::optional<std::string> fault = FindFault(name, limits_)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot write a ", what, " with ", *fault));
    }
    Number(static_cast<uint32_t>(name.size()));
    bytes_.append(name.data(), name.size());
    return absl::OkStatus();
  }

  absl::Status Map(const Meta& map, int depth) {
    Number(uint64_t{map.size()});
    for (const auto& [key, value] : map) {
      TDOCK_RETURN_IF_ERROR(Name("meta key", key));
      if (absl::Status status = Value(value, depth); !status.ok()) {
        return depth == 0 ? Annotate(status, absl::StrCat("meta '", key, "'")) : status;
      }
    }
    return absl::OkStatus();
  }

  std::string& bytes() { return bytes_; }

 private:
  template <class T>
  void Tagged(MetaTag tag, T value) {
    Number(tag);
    Number(value);
  }

  absl::Status Value(const MetaValue& value, int depth) {
    if (const auto* truth = value.As<bool>()) {
      Tagged(MetaTag::kBool, uint64_t{*truth});
    } else if (const auto* integer = value.As<int64_t>()) {
      Tagged(MetaTag::kInt64, *integer);
    } else if (const auto* number = value.As<double>()) {
      Tagged(MetaTag::kDouble, *number);
    } else if (const auto* text = value.As<std::string>()) {
      Tagged(MetaTag::kString, uint64_t{text->size()});
      bytes_.append(*text);
    } else if (depth >= limits_.max_meta_depth) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write lists and maps more than ", limits_.max_meta_depth, " inside one another"));
    } else if (const auto* list = value.As<MetaValue::List>()) {
      Tagged(MetaTag::kList, uint64_t{list->size()});
      for (const MetaValue& item : *list) TDOCK_RETURN_IF_ERROR(Value(item, depth + 1));
    } else {
      Number(MetaTag::kMap);
      return Map(*value.As<Meta>(), depth + 1);
    }
    return absl::OkStatus();
  }

  const FrameLimits& limits_;
  std::string bytes_;
};

struct Block {
  Buffer bytes;
  uint64_t checksum;
};

// The blocks of a column: offsets if it has any, then values.
void AppendBlocks(const Column& column, std::vector<Block>& blocks) {
  const auto append = [&blocks](Buffer bytes) {
    const uint64_t checksum = Checksum(bytes.bytes());
    blocks.push_back({std::move(bytes), checksum});
  };
  const auto owner = std::make_shared<const Column>(column);
  if (const std::span<const int64_t> offsets = column.offsets(); !offsets.empty()) {
    Buffer block = Buffer::Wrap(offsets.data(), offsets.size_bytes(), owner);
    if (offsets.front() != 0) {
      block = Buffer::Allocate(offsets.size_bytes());
      auto* const rebased = reinterpret_cast<int64_t*>(block.mutable_data());
      std::transform(offsets.begin(), offsets.end(), rebased, [&](int64_t offset) { return offset - offsets.front(); });
    }
    append(std::move(block));
  }
  const auto payload = column.PayloadBytes();
  append(Buffer::Wrap(payload.data(), payload.size(), owner));
}

// The header of a frame whose first block is at `at`.
absl::StatusOr<std::string> MakeHeader(const MetaBatch& batch, const std::vector<Block>& blocks, uint64_t at,
                                       const FrameLimits& limits) {
  Writer writer(limits);
  writer.bytes().append(kMagic.data(), kMagic.size());
  writer.Number(kVersion);
  writer.Number(static_cast<uint32_t>(batch.columns().columns().size()));
  writer.Number(batch.rows());
  writer.bytes().append(2 * sizeof(uint64_t), '\0');
  auto block = blocks.begin();
  for (const auto& [name, column] : batch.columns().columns()) {
    TDOCK_RETURN_IF_ERROR(writer.Name("column", name));
    const ColumnType& type = column.type();
    writer.Number(type.kind);
    writer.Number(type.dtype);
    writer.Number(static_cast<uint16_t>(type.row_shape.size()));
    for (int64_t size : type.row_shape) writer.Number(size);
    for (int count = type.kind == ColumnKind::kDense ? 1 : 2; count > 0; --count, ++block) {
      writer.Number(at);
      writer.Number(uint64_t{block->bytes.size()});
      writer.Number(block->checksum);
      at += RoundUp(block->bytes.size());
    }
  }
  TDOCK_RETURN_IF_ERROR(writer.Map(batch.meta(), 0));
  std::string& header = writer.bytes();
  const uint64_t sizes[] = {header.size() + kChecksumBytes, at};
  std::memcpy(header.data() + kPreludeBytes - sizeof(sizes), sizes, sizeof(sizes));
  writer.Number(Checksum(std::as_bytes(std::span(header))));
  return std::move(header);
}

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
    return AsText(bytes);
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
    if (std::optional<std::string> fault = FindFault(name, limits_)) return Damaged(*fault);
    return std::string(name);
  }

  absl::StatusOr<Meta> Map(int depth) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t count, Number<uint64_t>());
    Meta map;
    for (uint64_t i = 0; i < count; ++i) {
      TDOCK_ASSIGN_OR_RETURN(std::string key, Name());
      if (!map.empty() && key <= map.rbegin()->first) {
        return Damaged(absl::StrCat("meta key '", EscapeForMessage(key), "' is not after the one before it"));
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
        if (bits > 1) return Damaged(absl::StrCat("a truth value of ", bits));
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

struct Prelude {
  uint32_t columns;
  uint64_t rows;
  uint64_t header_bytes;
};

absl::StatusOr<Prelude> ReadPrelude(Reader& reader, std::span<const std::byte> frame, const FrameLimits& limits) {
  TDOCK_RETURN_IF_ERROR(reader.Raw(kMagic.size()).status());
  TDOCK_ASSIGN_OR_RETURN(const uint32_t version, reader.Number<uint32_t>());
  if (version != kVersion) {
    return reader.BeyondLimit(absl::StrCat("version ", version, " of the format; this program reads ", kVersion));
  }
  Prelude prelude;
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
  TDOCK_ASSIGN_OR_RETURN(const uint64_t frame_bytes, reader.Number<uint64_t>());
  if (frame_bytes != frame.size()) {
    return reader.Damaged(absl::StrCat("the frame should have ", frame_bytes, " bytes and has ", frame.size()));
  }
  if (prelude.header_bytes < kPreludeBytes + kChecksumBytes || prelude.header_bytes > frame.size()) {
    return reader.Damaged(absl::StrCat("a header of ", prelude.header_bytes, " bytes in a frame of ", frame.size()));
  }
  return prelude;
}

// Reads the columns, one after another: their blocks lie in the frame without gaps, each up to a multiple of 64 bytes.
class ColumnReader {
 public:
  ColumnReader(const Buffer& frame, Reader& header, int64_t rows, uint64_t first_block)
      : frame_(frame), header_(header), rows_(rows), at_(first_block) {}

  absl::Status ReadInto(Batch& batch) {
    TDOCK_ASSIGN_OR_RETURN(const std::string name, header_.Name());
    if (batch.Find(name) != nullptr) return header_.Damaged(absl::StrCat("a second column '", name, "'"));
    absl::StatusOr<Column> column = Read();
    if (column.ok() && column->rows() != rows_) {
      column = header_.Damaged(absl::StrCat(column->rows(), " rows instead of ", rows_));
    }
    if (column.ok()) return batch.Add(name, *std::move(column));
    // What does not make a column is the fault of the frame.
    const absl::Status status =
        absl::IsInvalidArgument(column.status()) ? header_.Damaged(column.status().message()) : column.status();
    return Annotate(status, absl::StrCat("column '", name, "'"));
  }

  // Where the last block ends, with the zeros after it.
  uint64_t at() const { return at_; }

  absl::Status SkipZeros(uint64_t from, uint64_t to) const {
    for (uint64_t at = from; at < to; ++at) {
      if (frame_.data()[at] != std::byte{0}) {
        return absl::DataLossError(absl::StrCat("damaged frame: byte ", at, ": not zero, but belongs to no column"));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Column> Read() {
    ColumnType type;
    TDOCK_ASSIGN_OR_RETURN(type.kind, header_.Number<ColumnKind>());
    TDOCK_ASSIGN_OR_RETURN(type.dtype, header_.Number<DType>());
    TDOCK_ASSIGN_OR_RETURN(const uint16_t rank, header_.Number<uint16_t>());
    if (rank > Shape::kMaxRank) return header_.Damaged(absl::StrCat("a shape of ", rank, " dimensions"));
    std::array<int64_t, Shape::kMaxRank> sizes;
    for (size_t i = 0; i < rank; ++i) {
      TDOCK_ASSIGN_OR_RETURN(sizes[i], header_.Number<int64_t>());
    }
    type.row_shape = Shape(std::span<const int64_t>(sizes.data(), rank));
    TDOCK_ASSIGN_OR_RETURN(const int64_t item, ItemBytes(type));

    Buffer offsets;
    if (type.kind != ColumnKind::kDense) {
      TDOCK_ASSIGN_OR_RETURN(offsets, ReadBlock("offsets"));
    }
    TDOCK_ASSIGN_OR_RETURN(Buffer values, ReadBlock("values"));
    if (type.dtype == DType::kBool) TDOCK_RETURN_IF_ERROR(CheckTruths(values.bytes()));
    if (type.kind == ColumnKind::kDense) return Column::MakeDense(type.dtype, type.row_shape, rows_, std::move(values));

    const uint64_t value_bytes = values.size();
    TDOCK_ASSIGN_OR_RETURN(Column column,
                           type.kind == ColumnKind::kBytes
                               ? Column::MakeBytes(std::move(values), std::move(offsets))
                               : Column::MakeRagged(type.dtype, type.row_shape, std::move(values), std::move(offsets)));
    if (column.offsets().front() != 0 || static_cast<uint64_t>(column.offsets().back() * item) != value_bytes) {
      return header_.Damaged(absl::StrCat("offsets from ", column.offsets().front(), " to ", column.offsets().back(),
                                          " for ", value_bytes, " bytes of values"));
    }
    return column;
  }

  absl::StatusOr<Buffer> ReadBlock(absl::string_view what) {
    TDOCK_ASSIGN_OR_RETURN(const uint64_t begin, header_.Number<uint64_t>());
    if (begin != at_) return header_.Damaged(absl::StrCat(what, " at byte ", begin, "; they must be at ", at_));
    TDOCK_ASSIGN_OR_RETURN(const uint64_t size, header_.Number<uint64_t>());
    if (size > frame_.size() - at_) {
      return header_.Damaged(absl::StrCat(size, " bytes of ", what, "; the frame has ", frame_.size() - at_, " left"));
    }
    TDOCK_ASSIGN_OR_RETURN(const uint64_t checksum, header_.Number<uint64_t>());
    Buffer block = frame_.Slice(begin, size);
    if (Checksum(block.bytes()) != checksum) {
      return absl::DataLossError(absl::StrCat("damaged frame: bytes ", begin, " to ", begin + size, ": the ", what,
                                              " do not have their checksum"));
    }
    if (RoundUp(size) > frame_.size() - at_)
      return header_.Damaged("the frame ends without zeros after the last block");
    TDOCK_RETURN_IF_ERROR(SkipZeros(begin + size, begin + RoundUp(size)));
    at_ += RoundUp(size);
    return block;
  }

  const Buffer& frame_;
  Reader& header_;
  int64_t rows_;
  uint64_t at_;
};

absl::Status CheckStart(const Buffer& frame) {
  const size_t compared = std::min(frame.size(), kMagic.size());
  if (AsText(frame.bytes().first(compared)) != kMagic.substr(0, compared)) {
    return absl::InvalidArgumentError("no frame: byte 0: it does not begin as a frame does");
  }
  if (reinterpret_cast<uintptr_t>(frame.data()) % alignof(int64_t) != 0) {
    return absl::InvalidArgumentError("the memory of a frame must begin at a multiple of 8 bytes");
  }
  if (frame.size() >= kPreludeBytes + kChecksumBytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("damaged frame: it ends at byte ", frame.size(), ", within the first ", kPreludeBytes));
}

}  // namespace

std::vector<absl::string_view> EncodedFrame::Pieces() const {
  static constexpr char kZeros[kAlignment] = {};
  std::vector<absl::string_view> pieces = {header};
  for (const Buffer& block : blocks) {
    pieces.push_back(AsText(block.bytes()));
    pieces.push_back(absl::string_view(kZeros, RoundUp(block.size()) - block.size()));
  }
  return pieces;
}

absl::StatusOr<EncodedFrame> EncodeFrame(const MetaBatch& batch, const FrameLimits& limits) {
  const size_t columns = batch.columns().columns().size();
  if (columns > limits.max_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", columns, " columns; the limit is ", limits.max_columns));
  }
  if (batch.rows() > limits.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", batch.rows(), " rows; the limit is ", limits.max_rows));
  }
  std::vector<Block> blocks;
  for (const auto& [name, column] : batch.columns().columns()) {
    if (column.type().dtype == DType::kBool) {
      const absl::Status status = CheckTruths(column.PayloadBytes());
      if (!status.ok()) return Annotate(status, absl::StrCat("column '", EscapeForMessage(name), "'"));
    }
    AppendBlocks(column, blocks);
  }
  // Where the blocks begin does not change the size of the header.
  TDOCK_ASSIGN_OR_RETURN(const std::string draft, MakeHeader(batch, blocks, 0, limits));
  if (draft.size() > limits.max_header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write a header of ", draft.size(), " bytes; the limit is ", limits.max_header_bytes));
  }
  EncodedFrame frame;
  TDOCK_ASSIGN_OR_RETURN(frame.header, MakeHeader(batch, blocks, RoundUp(draft.size()), limits));
  frame.header.resize(RoundUp(draft.size()), '\0');
  for (Block& block : blocks) frame.blocks.push_back(std::move(block.bytes));
  return frame;
}

absl::StatusOr<MetaBatch> DecodeFrame(const Buffer& frame, const FrameLimits& limits) {
  TDOCK_RETURN_IF_ERROR(CheckStart(frame));
  Reader start(frame.bytes(), limits);
  TDOCK_ASSIGN_OR_RETURN(const Prelude prelude, ReadPrelude(start, frame.bytes(), limits));
  const uint64_t checked = prelude.header_bytes - kChecksumBytes;
  uint64_t checksum;
  std::memcpy(&checksum, frame.data() + checked, sizeof(checksum));
  if (Checksum(frame.bytes().first(checked)) != checksum) {
    return absl::DataLossError(
        absl::StrCat("damaged frame: bytes 0 to ", checked, ": the header does not have its checksum"));
  }

  Reader header(frame.bytes().first(checked), limits);
  TDOCK_RETURN_IF_ERROR(header.Raw(kPreludeBytes).status());
  const uint64_t first_block = RoundUp(prelude.header_bytes);
  if (first_block > frame.size()) return header.Damaged("the frame ends without zeros after the header");
  ColumnReader columns(frame, header, static_cast<int64_t>(prelude.rows), first_block);
  TDOCK_RETURN_IF_ERROR(columns.SkipZeros(prelude.header_bytes, first_block));
  Batch batch;
  for (uint32_t i = 0; i < prelude.columns; ++i) TDOCK_RETURN_IF_ERROR(columns.ReadInto(batch));
  if (batch.rows() != static_cast<int64_t>(prelude.rows)) return header.Damaged("rows without columns");
  TDOCK_ASSIGN_OR_RETURN(Meta meta, header.Map(0));
  if (header.left() != 0) return header.Damaged(absl::StrCat(header.left(), " bytes after the meta"));
  if (columns.at() != frame.size()) {
    return absl::DataLossError(absl::StrCat("damaged frame: byte ", columns.at(), ": ", frame.size() - columns.at(),
                                            " bytes after the last column"));
  }
  return MetaBatch(std::move(batch), std::move(meta));
}

absl::Status SaveBatch(Env& env, const std::string& path, const MetaBatch& batch, const FrameLimits& limits) {
  absl::StatusOr<EncodedFrame> frame = EncodeFrame(batch, limits);
  if (!frame.ok()) return Annotate(frame.status(), path);
  return WriteFileAtomically(env, path, frame->Pieces());
}

absl::StatusOr<MetaBatch> LoadBatch(Env& env, const std::string& path, const FrameLimits& limits) {
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, env.MapFile(path));
  const std::shared_ptr<const MappedFile> file = std::move(mapped);
  absl::StatusOr<MetaBatch> batch = DecodeFrame(Buffer::Wrap(file->bytes().data(), file->bytes().size(), file), limits);
  return batch.ok() ? std::move(batch) : Annotate(batch.status(), path);
}

}  // namespace tdock
